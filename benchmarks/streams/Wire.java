import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadFeature;
import com.fasterxml.jackson.core.StreamWriteFeature;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Reads and writes record values with Jackson's streaming API; see docs/formats.md. The id is the record's key. */
final class Wire {
    private static final JsonFactory JSON = JsonFactory.builder()
            .enable(StreamReadFeature.USE_FAST_DOUBLE_PARSER)
            .enable(StreamWriteFeature.USE_FAST_DOUBLE_WRITER)
            .build();

    private int[] indices = new int[1_024];
    private double[] values = new double[1_024];
    private final ByteArrayOutputStream out = new ByteArrayOutputStream(1_024);

    /** Sparse features, {"i": [...], "v": [...]}. All values are 1 if v is absent. */
    Features features(byte[] context) {
        int n = 0, m = 0;
        try (JsonParser json = JSON.createParser(context)) {
            while (json.nextToken() != null) {
                if (json.currentToken() != JsonToken.START_ARRAY) {
                    continue;
                }
                if (json.currentName().equals("i")) {
                    while (json.nextToken() != JsonToken.END_ARRAY) {
                        if (n == indices.length) {
                            indices = Arrays.copyOf(indices, 2 * n);
                        }
                        indices[n++] = json.getIntValue();
                    }
                } else if (json.currentName().equals("v")) {
                    while (json.nextToken() != JsonToken.END_ARRAY) {
                        if (m == values.length) {
                            values = Arrays.copyOf(values, 2 * m);
                        }
                        values[m++] = json.getDoubleValue();
                    }
                }
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        double[] found = new double[n];
        if (m == n) {
            System.arraycopy(values, 0, found, 0, n);
        } else {
            Arrays.fill(found, 1);
        }
        return new Features(Arrays.copyOf(indices, n), found);
    }

    int reward(byte[] feedback) {
        try (JsonParser json = JSON.createParser(feedback)) {
            while (json.nextToken() != null) {
                if (json.currentToken() == JsonToken.VALUE_NUMBER_INT && json.currentName().equals("reward")) {
                    return json.getIntValue();
                }
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        throw new IllegalArgumentException("feedback without a reward");
    }

    byte[] prediction(byte[] id, Decision decision, long version, long contextOffset) {
        return written(json -> {
            json.writeStringField("id", new String(id, StandardCharsets.UTF_8));
            json.writeNumberField("action", decision.action());
            json.writeNumberField("greedy", decision.greedy());
            json.writeNumberField("propensity", decision.propensity());
            json.writeFieldName("scores");
            json.writeArray(decision.scores(), 0, decision.scores().length);
            json.writeNumberField("model_version", version);
            json.writeNumberField("context_offset", contextOffset);
        });
    }

    /** A settled decision. It has expired if it has no feedback. */
    byte[] example(byte[] id, Pending decided, Integer reward, long settledMs, long feedbackOffset) {
        return written(json -> {
            json.writeStringField("id", new String(id, StandardCharsets.UTF_8));
            json.writeStringField("outcome", reward == null ? "expired" : "matched");
            json.writeNumberField("action", decided.action());
            json.writeNumberField("propensity", decided.propensity());
            if (reward == null) {
                json.writeNullField("reward");
                json.writeNullField("delay_ms");
            } else {
                json.writeNumberField("reward", reward);
                json.writeNumberField("delay_ms", settledMs - decided.decidedMs());
            }
            json.writeNumberField("settled_at_ms", settledMs);
            if (reward == null) {
                json.writeNullField("feedback_offset");
            } else {
                json.writeNumberField("feedback_offset", feedbackOffset);
            }
        });
    }

    private byte[] written(Members members) {
        out.reset();
        try (JsonGenerator json = JSON.createGenerator(out)) {
            json.writeStartObject();
            members.write(json);
            json.writeEndObject();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return out.toByteArray();
    }

    private interface Members {
        void write(JsonGenerator json) throws IOException;
    }
}
