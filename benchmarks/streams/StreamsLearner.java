import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * A learner in Kafka Streams with exactly-once processing; benchmarks/real_kafka.py starts it.
 *
 * <p>Decisions wait for feedback in a store with a changelog. The model is in memory. Its changed rows are in a cached
 * store, which writes each of them to its changelog once per commit. Feedback without a pending decision is dropped.
 * Unlike Onebit, the application stores neither early feedback nor the ids of settled events.
 */
public final class StreamsLearner {
    private static final String PREFIX = System.getProperty("prefix");
    private static final long WINDOW_MS = Long.getLong("window_ms");

    public static void main(String[] arguments) throws InterruptedException {
        KafkaStreams streams = new KafkaStreams(topology(), settings());
        CountDownLatch failed = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(30))));
        streams.start();
        failed.await();
        System.exit(1);
    }

    private static Properties settings() {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, PREFIX + "learner");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, System.getProperty("bootstrap"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, System.getProperty("state_dir"));
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, Long.getLong("commit_ms"));
        settings.put(StreamsConfig.POLL_MS_CONFIG, Long.getLong("commit_ms"));
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        return settings;
    }

    private static Topology topology() {
        var bytes = Serdes.ByteArray();
        boolean onDisk = System.getProperty("store").equals("rocksdb");
        Topology topology = new Topology();
        topology.addSource("contexts", bytes.deserializer(), bytes.deserializer(), PREFIX + "contexts");
        topology.addSource("feedback", bytes.deserializer(), bytes.deserializer(), PREFIX + "feedback");
        topology.addProcessor("learner", Learner::new, "contexts", "feedback");
        topology.addStateStore(
                Stores.keyValueStoreBuilder(
                        onDisk ? Stores.persistentKeyValueStore("pending") : Stores.inMemoryKeyValueStore("pending"),
                        bytes, bytes),
                "learner");
        topology.addStateStore(
                Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("model"), Serdes.Integer(), bytes)
                        .withCachingEnabled(),
                "learner");
        topology.addSink("predictions", PREFIX + "predictions", bytes.serializer(), bytes.serializer(), "learner");
        topology.addSink("examples", PREFIX + "examples", bytes.serializer(), bytes.serializer(), "learner");
        return topology;
    }

    private static final class Learner implements Processor<byte[], byte[], byte[], byte[]> {
        private final Wire wire = new Wire();
        private final Banditron model = new Banditron(
                Integer.getInteger("classes"), Integer.getInteger("features"),
                Double.parseDouble(System.getProperty("gamma")), Long.getLong("seed"));
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<byte[], byte[]> pending;
        private KeyValueStore<Integer, byte[]> rows;

        @Override
        public void init(ProcessorContext<byte[], byte[]> context) {
            this.context = context;
            pending = context.getStateStore("pending");
            rows = context.getStateStore("model");
            for (int k = 0; k < model.classes(); k++) {
                byte[] row = rows.get(k);
                if (row != null) {
                    model.restore(k, row);
                }
            }
            context.schedule(Duration.ofMillis(WINDOW_MS / 10), PunctuationType.STREAM_TIME, this::expire);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            RecordMetadata from = context.recordMetadata().orElseThrow();
            if (from.topic().endsWith("contexts")) {
                decide(record, from.offset());
            } else {
                learn(record, from.offset());
            }
        }

        private void decide(Record<byte[], byte[]> record, long offset) {
            if (pending.get(record.key()) != null) {
                return; // a duplicate
            }
            Features x = wire.features(record.value());
            Decision decision = model.decide(record.key(), x);
            Pending waits = new Pending(record.timestamp(), decision.action(), decision.propensity(), x);
            pending.put(record.key(), waits.bytes());
            byte[] value = wire.prediction(record.key(), decision, model.version, offset);
            context.forward(record.withValue(value), "predictions");
        }

        private void learn(Record<byte[], byte[]> record, long offset) {
            byte[] found = pending.delete(record.key());
            if (found == null) {
                return;
            }
            Pending decided = Pending.of(found);
            if (record.timestamp() > decided.decidedMs() + WINDOW_MS) {
                settle(record, decided, null, offset);
                return;
            }
            int reward = wire.reward(record.value());
            int greedy = model.update(decided.x(), decided.action(), decided.propensity(), reward);
            rows.put(greedy, model.row(greedy));
            if (reward == 1 && decided.action() != greedy) {
                rows.put(decided.action(), model.row(decided.action()));
            }
            settle(record, decided, reward, offset);
        }

        private void expire(long streamMs) {
            try (KeyValueIterator<byte[], byte[]> all = pending.all()) {
                while (all.hasNext()) {
                    KeyValue<byte[], byte[]> next = all.next();
                    Pending decided = Pending.of(next.value);
                    if (streamMs > decided.decidedMs() + WINDOW_MS) {
                        pending.delete(next.key);
                        settle(new Record<>(next.key, null, streamMs), decided, null, -1);
                    }
                }
            }
        }

        private void settle(Record<byte[], byte[]> record, Pending decided, Integer reward, long offset) {
            byte[] value = wire.example(record.key(), decided, reward, record.timestamp(), offset);
            context.forward(record.withValue(value), "examples");
        }
    }
}
