{{- define "onebit.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* Arguments of the templates below: a dict of `root` (the chart's context) and `program`. */ -}}

{{- define "onebit.selector" -}}
app.kubernetes.io/name: onebit
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .program }}
{{- end }}

{{- define "onebit.labels" -}}
{{ include "onebit.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "onebit.image" -}}
{{- $image := .root.Values.image -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "onebit.metadata" -}}
labels: {{- include "onebit.labels" . | nindent 2 }}
{{- with .root.Values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Pod fields. Service links are off, because a Service named onebit-serve would set the variable ONEBIT_SERVE_PORT.
`kernels` copies the kernels in the image to the only volume in which new ones can be stored. */ -}}
{{- define "onebit.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .scheduling }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
initContainers:
  - name: kernels
    {{- include "onebit.container" . | nindent 4 }}
    command: [cp, -r, /var/lib/onebit/., /kernels]
    resources:
      requests: {cpu: 10m, memory: 32Mi}
      limits: {memory: 64Mi}
    volumeMounts:
      - {name: home, mountPath: /kernels}
volumes:
  - name: home
    emptyDir: {sizeLimit: 256Mi}
  - name: tmp
    emptyDir: {sizeLimit: 256Mi}
  {{- with .root.Values.kafka.clientSecret }}
  - name: security
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- if and (eq .program "gateway") .root.Values.gateway.tlsSecret }}
  - name: tls
    secret: {secretName: {{ .root.Values.gateway.tlsSecret }}, defaultMode: 0440}
  {{- end }}
{{- end }}

{{- define "onebit.container" -}}
image: {{ include "onebit.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "onebit.mounts" -}}
volumeMounts:
  - {name: home, mountPath: /var/lib/onebit}
  - {name: tmp, mountPath: /tmp}
  {{- if .root.Values.kafka.clientSecret }}
  - {name: security, mountPath: /security, readOnly: true}
  {{- end }}
  {{- if and (eq .program "gateway") .root.Values.gateway.tlsSecret }}
  - {name: tls, mountPath: /tls, readOnly: true}
  {{- end }}
{{- end }}

{{- /* Settings of a program: those of all programs, then its own ones in `settings`. */ -}}
{{- define "onebit.env" -}}
{{- $kafka := .root.Values.kafka -}}
{{- $own := dict "ONEBIT_BOOTSTRAP" $kafka.bootstrap "ONEBIT_TOPIC_PREFIX" $kafka.topicPrefix "ONEBIT_CONNECT_TIMEOUT" "2m" "ONEBIT_LOG_FORMAT" "json" -}}
{{- if $kafka.clientSecret }}{{ $_ := set $own "ONEBIT_CLIENT_CONFIG" "/security/client.properties" }}{{ end -}}
{{- range $name, $value := mergeOverwrite $own (deepCopy .root.Values.settings) (deepCopy (.settings | default dict)) }}
- {name: {{ $name }}, value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}}
{{- end }}
{{- end }}

{{- /* Probes of a port. A program that recovers or waits for Kafka is alive, but not ready. */ -}}
{{- define "onebit.probes" -}}
{{- $scheme := .scheme | default "HTTP" -}}
startupProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
