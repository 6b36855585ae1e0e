import java.nio.ByteBuffer;

/** The banditron of stream/learners/first_order/banditron.py: epsilon-greedy decisions, updates with the current greedy class. */
final class Banditron {
    private static final int VERSION_BYTES = Long.BYTES;

    private final double[][] weights;
    private final double gamma;
    private final long seed;
    long version;

    Banditron(int classes, int features, double gamma, long seed) {
        this.weights = new double[classes][features];
        this.gamma = gamma;
        this.seed = seed;
    }

    int classes() {
        return weights.length;
    }

    Decision decide(byte[] id, Features x) {
        double[] scores = scores(x);
        int greedy = argmax(scores);
        double uniform = gamma / scores.length;
        double u = draw(id);
        // Greedy with probability 1 - gamma, otherwise uniform over all classes.
        int action = u < 1 - gamma ? greedy : Math.min(scores.length - 1, (int) ((u - 1 + gamma) / uniform));
        return new Decision(action, greedy, action == greedy ? uniform + 1 - gamma : uniform, scores);
    }

    /** Returns the current greedy class. Its row and that of the action have changed. */
    int update(Features x, int action, double propensity, int reward) {
        int greedy = argmax(scores(x));
        add(weights[greedy], x, -1);
        if (reward == 1) {
            add(weights[action], x, 1 / propensity);
        }
        version++;
        return greedy;
    }

    byte[] row(int k) {
        ByteBuffer bytes = ByteBuffer.allocate(VERSION_BYTES + Double.BYTES * weights[k].length);
        bytes.putLong(version).asDoubleBuffer().put(weights[k]);
        return bytes.array();
    }

    void restore(int k, byte[] row) {
        ByteBuffer bytes = ByteBuffer.wrap(row);
        version = Math.max(version, bytes.getLong());
        bytes.asDoubleBuffer().get(weights[k]);
    }

    private double[] scores(Features x) {
        double[] scores = new double[weights.length];
        for (int k = 0; k < scores.length; k++) {
            double sum = 0;
            for (int j = 0; j < x.indices().length; j++) {
                sum += weights[k][x.indices()[j]] * x.values()[j];
            }
            scores[k] = sum;
        }
        return scores;
    }

    private static void add(double[] row, Features x, double scale) {
        for (int j = 0; j < x.indices().length; j++) {
            row[x.indices()[j]] += scale * x.values()[j];
        }
    }

    private static int argmax(double[] scores) {
        int best = 0;
        for (int k = 1; k < scores.length; k++) {
            if (scores[k] > scores[best]) {
                best = k;
            }
        }
        return best;
    }

    /** Returns a uniform draw in [0, 1) that depends only on seed and id, so that reprocessing repeats it. */
    private double draw(byte[] id) {
        long z = seed;
        for (byte b : id) {
            z = (z ^ b) * 0x100000001b3L;
        }
        z += 0x9E3779B97F4A7C15L;
        z = (z ^ z >>> 30) * 0xBF58476D1CE4E5B9L;
        z = (z ^ z >>> 27) * 0x94D049BB133111EBL;
        return ((z ^ z >>> 31) >>> 11) * 0x1p-53;
    }
}

record Features(int[] indices, double[] values) {}

record Decision(int action, int greedy, double propensity, double[] scores) {}

/** A pending decision, and its bytes in the store. */
record Pending(long decidedMs, int action, double propensity, Features x) {
    private static final int HEAD_BYTES = 2 * Long.BYTES + 2 * Integer.BYTES;

    byte[] bytes() {
        int n = x.indices().length;
        ByteBuffer bytes = ByteBuffer.allocate(HEAD_BYTES + n * (Integer.BYTES + Double.BYTES));
        bytes.putLong(decidedMs).putDouble(propensity).putInt(action).putInt(n);
        bytes.asIntBuffer().put(x.indices());
        bytes.position(HEAD_BYTES + n * Integer.BYTES).asDoubleBuffer().put(x.values());
        return bytes.array();
    }

    static Pending of(byte[] value) {
        ByteBuffer bytes = ByteBuffer.wrap(value);
        long decidedMs = bytes.getLong();
        double propensity = bytes.getDouble();
        int action = bytes.getInt();
        Features x = new Features(new int[bytes.getInt()], new double[(value.length - HEAD_BYTES) / 12]);
        bytes.asIntBuffer().get(x.indices());
        bytes.position(HEAD_BYTES + x.indices().length * Integer.BYTES).asDoubleBuffer().get(x.values());
        return new Pending(decidedMs, action, propensity, x);
    }
}
