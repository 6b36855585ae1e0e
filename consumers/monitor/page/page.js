// The monitor's page: displays the values from server-sent events, and computes only the shapes of charts.
"use strict";

const at = id => document.getElementById(id);
const count = n => n.toLocaleString("en");
const words = name => name.replaceAll("_", " ");
let graded = false; // whether the page shows mean rewards instead of errors
const percent = (x, digits = 1) => x === null ? "–" : `${(100 * x).toFixed(digits)}\u00a0%`;
const between = interval => interval === null ? "–" : `${(100 * interval[0]).toFixed(1)} to ${percent(interval[1])}`.replaceAll(" ", "\u00a0");
const number = x => x === null ? "–" : String(Number(x.toPrecision(4)));
const figure = (x, digits) => graded ? number(x) : percent(x, digits);
const figureShown = one => one === null ? "–" : graded ? `${number(one[0])} (${number(one[1])}\u00a0to\u00a0${number(one[2])})` : shown(one);
const rewardBetween = interval => graded && interval !== null ? `${number(interval[0])}\u00a0to\u00a0${number(interval[1])}` : between(interval);
const shown = share => share === null ? "–" : `${percent(share[0])} (${between(share.slice(1))})`;
const seconds = s => s === null ? "–" : s < 1 ? `${Math.round(1000 * s)}\u00a0ms` : s < 120 ? `${s.toFixed(1)}\u00a0s`
  : s < 7200 ? `${(s / 60).toFixed(0)}\u00a0min` : `${(s / 3600).toFixed(1)}\u00a0h`;
const time = ms => new Date(ms).toISOString().slice(11, 19);

function say(element, text) { // only on change, because screen readers announce it
  if (element.textContent !== text) element.textContent = text;
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function table(into, heads, rows, caption) {
  const made = element("table"), head = made.createTHead().insertRow(), body = made.createTBody();
  if (caption) made.prepend(element("caption", caption));
  for (const name of heads) {
    const cell = name instanceof Node ? name : element("th", name);
    cell.scope = "col";
    head.append(cell);
  }
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((value, place) => {
      const cell = value instanceof Node ? value : element("td", value);
      cell.dataset.head = head.cells[place].textContent;
      line.append(cell);
    });
  }
  into.append(made);
}

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const inUtc = uPlot.fmtDate("{HH}:{mm}:{ss}");

function axis(size, values, more = {}) {
  return {stroke: () => colour("soft"), font: "12px system-ui, sans-serif", ticks: {show: false}, size, values, ...more};
}

class Chart { // a uPlot that is created once, updated repeatedly, and as wide as its container
  constructor(id, options) {
    this.place = at(id);
    this.options = options;
  }

  show(label, data) {
    this.place.setAttribute("role", "img");
    this.place.setAttribute("aria-label", label);
    if (!this.plot) {
      this.plot = new uPlot({...this.size(), legend: {show: false}, cursor: {show: false}, ...this.options}, data, this.place);
      new ResizeObserver(() => this.plot.setSize(this.size())).observe(this.place);
    } else this.plot.setData(data);
  }

  size() {
    return {width: Math.max(200, this.place.clientWidth), height: 220};
  }
}

const hidden = {width: 0, points: {show: false}};
const errorChart = new Chart("error", {
  tzDate: s => uPlot.tzDate(new Date(1000 * s), "Etc/UTC"),
  padding: [8, 24, 0, 0],
  scales: {x: {range: (u, low, high) => [low, Math.max(high, low + 60)]}, y: {range: (u, low, high) => graded ? [Math.min(0, low), high] : [0, Math.min(1, Math.max(0.1, high))]}},
  axes: [
    axis(28, (u, splits) => splits.map(s => inUtc(uPlot.tzDate(new Date(1000 * s), "Etc/UTC"))), {grid: {show: false}, space: 90}),
    axis(50, (u, splits) => splits.map(share => figure(share, 0)), {grid: {stroke: () => colour("line"), width: 1}}),
  ],
  series: [{}, {stroke: () => colour("figure"), width: 2, points: {show: false}}, hidden, hidden,
    {stroke: () => colour("greedy"), width: 2, dash: [6, 3], points: {show: false}}],
  bands: [{series: [3, 2], fill: () => colour("band")}],
});
const delayChart = new Chart("delays", {
  padding: [8, 24, 0, 0], // on the right, half of the last label
  scales: {x: {time: false, range: () => [-0.5, delayBins.length - 0.5]}, y: {range: (u, low, high) => [0, high]}},
  axes: [
    axis(28, (u, splits) => splits.map(place => seconds(delayBins[place][0])),
      {grid: {show: false}, splits: u => delayBins.map((_, place) => place).filter(place => place % Math.ceil(56 * delayBins.length / u.width) === 0)}),
    axis(50, (u, splits) => splits.map(count), {grid: {stroke: () => colour("line"), width: 1}}),
  ],
  series: [{}, {fill: () => colour("figure"), width: 0, paths: uPlot.paths.bars({size: [0.92]}), points: {show: false}}],
});
let delayBins = [];

function drawError(windows, nowMs) {
  const judged = windows.filter(([, , error]) => error !== null);
  at("h-error").parentElement.hidden = !judged.length;
  if (!judged.length) return;
  const rows = [];
  for (const [ms, , error, greedy] of judged) { // the line has gaps where nothing was matched
    if (rows.length && ms / 1000 - rows.at(-1)[0] > 20) rows.push([ms / 1000 - 10, null, null, null, null]);
    rows.push([ms / 1000, ...error.slice(0, 3), greedy && greedy[0]]);
  }
  rows.push([nowMs / 1000, null, null, null, null]);
  const last = judged.at(-1);
  at("greedy-key").hidden = !judged.some(([, , , greedy]) => greedy !== null);
  errorChart.show(`${graded ? "Mean reward" : "Error"} from ${time(judged[0][0])} to ${time(nowMs)} UTC; last played ${figureShown(last[2])}, greedy ${figureShown(last[3])}`,
    rows[0].map((_, column) => rows.map(row => row[column])));
}

function drawDelays({n, bins, quantiles_s}) {
  at("h-delays").parentElement.hidden = !n;
  if (!n) return;
  const [half, most, nearly] = quantiles_s.map(seconds);
  say(at("quantiles"), `Feedback delay: median ${half}, 90th percentile ${most}, 99th percentile ${nearly} (n = ${count(n)}).`);
  delayBins = bins;
  delayChart.show(`Histogram of ${count(n)} delays, from ${seconds(bins[0][0])} to ${seconds(bins.at(-1)[1])}`,
    [bins.map((_, place) => place), bins.map(([, , height]) => height)]);
}

function drawEstimates(estimates) {
  at("h-estimates").parentElement.hidden = !estimates.length; // no decision was drawn at random, or none is settled
  at("estimates").replaceChildren();
  const means = {greedy: "greedy (highest score)", uniform: "uniform", learner: "the learner's own policy", baseline: "the service's own rule"};
  table(at("estimates"), ["policy", "reward", "95% interval", "95%, anytime-valid", "played", "decisions", "effective sample size"],
    estimates.map(({policy, n, ess, played, off, estimates: [ips, snips]}) => [
      element("td", `${means[policy] ?? policy}${off ? " (unreliable: mean weight is not 1)" : ""}`, "long"), figure(snips[1]), rewardBetween(snips[2]), rewardBetween(ips[3]), figure(played), count(n), count(Math.round(ess)),
    ]));
}

function drawComparison(id, found) {
  at(`h-${id}`).parentElement.hidden = !found;
  if (!found) return;
  at(id).replaceChildren();
  table(at(id), found.columns, found.rows);
  if (found.note) say(at(`${id}-note`), found.note);
  say(at(`${id}-flag`), found.flag);
}

function drawLedger(books) {
  at("ledger").replaceChildren();
  for (const {total, value, parts, holds} of books) {
    const sign = element("td", holds ? "✓ balanced" : "✗ not balanced", holds ? "good" : "bad");
    const rows = parts.filter(([, n]) => n).map(([name, n]) => [words(name), count(n)]);
    table(at("ledger"), ["result", "records"], [...rows, [sign, count(value)]], `${words(total)}: ${count(value)}`);
  }
}

function show(picture) {
  say(at("condition"), picture.condition);
  say(at("why"), picture.why);
  at("verdict").dataset.condition = picture.condition;
  document.title = `${picture.condition}: Onebit ${picture.topics ?? ""}`;
  at("main").hidden = !picture.ledger;
  if (!picture.ledger) return; // the monitor is not connected to Kafka yet
  say(at("topics"), picture.topics);
  if (picture.pipeline) {
    const {learner, window_ms, instances} = picture.pipeline;
    const names = instances && Object.entries(instances).map(([name, partitions]) => `${name} (${partitions.length ? `partition ${partitions.join(", ")}` : "no partition"})`);
    say(at("pipeline"), `Learner ${learner}, window ${seconds(window_ms / 1000)}${names ? `; ${names.length ? names.join(", ") : "no instance is running"}` : ""}`);
  }
  const notes = [];
  if (picture.behind > 5000) notes.push(`Windows, delays and actions are ${count(picture.behind)} records behind; the counts are current.`);
  if (picture.sample > 1) notes.push(`High rate: the monitor samples one decision in ${count(picture.sample)}. The ledger counts all records.`);
  if (picture.passed_over) notes.push(`Error or mean reward, delays, latency and actions are from a sample; ${count(picture.passed_over)} records have been skipped so far.`);
  if (picture.unreadable) notes.push(`${count(picture.unreadable)} records in the learner's output topics were not written by a learner.`);
  say(at("notes"), notes.join(" "));

  const {ledger, error, greedy_error, exploration, latencies: {n, quantiles_s: [half, , nearly]}} = picture;
  graded = picture.reward_range !== null;
  const measure = graded ? "mean reward" : "error";
  say(at("h-error"), graded ? "Mean reward" : "Error");
  say(at("figure"), graded ? "Mean reward of" : "Share of wrong actions among");
  const sampled = picture.waiting_sample > 1 ? ` (sample of one in ${count(picture.waiting_sample)})` : "";
  const now = [
    ["decided", count(ledger.decided)], ["pending", count(ledger.pending)], ["matched", count(ledger.matched)],
    ["expired", count(ledger.expired)],
    ...(ledger.deferred + ledger.unshown ? [["deferred", count(ledger.deferred)], ["unshown", count(ledger.unshown)]] : []),
    ["late", count(ledger.late)], ["misplaced", count(ledger.contexts_misplaced + ledger.feedback_misplaced)],
    [`oldest pending${sampled}`, seconds(picture.oldest_s)],
  ];
  const minute = [
    [measure, figureShown(error)], [`greedy ${measure}`, figureShown(greedy_error)], ["explored", shown(exploration)],
    ["decision latency", n ? `${seconds(half)}; 99\u00a0%: ${seconds(nearly)}` : "–"],
  ].filter(([, value]) => value !== "–");
  const list = rows => rows.flatMap(([name, value]) => [element("dt", name), element("dd", value)]);
  at("now").replaceChildren(...list(now));
  say(at("minute-end"), picture.now_ms ? `to ${time(picture.now_ms)} UTC` : "");
  at("minute").replaceChildren(...list(minute));
  at("minute-empty").hidden = minute.length > 0;

  say(at("balance"), picture.balanced ? "balanced in every partition." : "not balanced. Run: onebit verify");
  at("balance").className = picture.balanced ? "good" : "bad";
  drawLedger(picture.books);
  drawError(picture.windows, picture.now_ms);
  drawDelays(picture.delays);
  drawEstimates(picture.estimates);
  drawComparison("holdout", picture.holdout);
  drawComparison("challengers", picture.challengers);

  at("partitions").replaceChildren();
  table(at("partitions"), ["partition", "steps", "decided", "pending", "oldest", "waiting contexts", "waiting feedback", measure, "model version", "drift alarms", "ledger"],
    picture.partitions.map(one => [
      String(one.partition), count(one.steps), count(one.decided), count(one.pending), seconds(one.oldest_s), count(one.contexts),
      count(one.feedback), one.error ? figure(one.error[0]) : "–", count(one.version), count(one.alarms),
      element("td", one.balanced ? "✓ balanced" : "✗ not balanced", one.balanced ? "good" : "bad"),
    ]));

  const {classes, classes_in_all: all} = picture;
  at("h-classes").parentElement.hidden = !classes.length;
  say(at("classes-in-all"), classes.length < all ? `The ${count(classes.length)} most frequently played of ${count(all)} actions.` : "");
  at("classes").replaceChildren();
  table(at("classes"), ["action", "played", "share", measure],
    classes.map(one => [String(one.action), count(one.decided), percent(one.share), figureShown(one.error)]));

  at("h-letters").parentElement.hidden = !picture.letters.length;
  const listed = picture.letters.reduce((sum, one) => sum + one.n, 0);
  say(at("letters-in-all"), `${count(picture.letters_in_all)} in all; the table has the ${count(listed)} with the most frequent recent reasons.`);
  at("letters").replaceChildren();
  table(at("letters"), [element("th", "last reason", "text"), "kind", "records", "last record", "last letter", "at (UTC)"],
    picture.letters.map(one => [
      element("td", one.reason, "long"), one.kind, count(one.n), one.source, `partition ${one.partition}, offset ${one.offset}`, time(one.append_ms),
    ]));
}

function lose() {
  say(at("condition"), "not connected");
  say(at("why"), "no response from the monitor; reconnecting");
  at("verdict").dataset.condition = "lost";
  document.title = "not connected: Onebit";
}

let silent;
function listen() {
  const source = new EventSource("events");
  const again = () => { source.close(); lose(); clearTimeout(silent); setTimeout(listen, 1000); };
  source.onmessage = event => {
    clearTimeout(silent);
    silent = setTimeout(again, 5000); // a frozen monitor does not close the connection
    show(JSON.parse(event.data));
  };
  source.onerror = again;
}
listen();
