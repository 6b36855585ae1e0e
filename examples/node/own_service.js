// Example of a service that learns which of three pages its visitors want, from one late bit per visitor.
//
// This is the JavaScript version of examples/own_service.py. It uses only Kafka and JSON, not Onebit. At the end, it
// prints the share of visitors with the right page. It exits with 1 if predictions do not arrive.
//
//     npm ci --prefix examples/node
//     onebit topics create --topic-prefix own.
//     onebit learn --topic-prefix own. --n-classes 3 --n-features 4 --learner banditron     # in a second terminal
//     ONEBIT_TOPIC_PREFIX=own. node examples/node/own_service.js

import {randomUUID} from 'node:crypto';
import {Kafka, Partitioners, logLevel} from 'kafkajs';

const bootstrap = process.env.ONEBIT_BOOTSTRAP ?? 'localhost:9092';
const prefix = process.env.ONEBIT_TOPIC_PREFIX ?? 'onebit.';
const timeoutMs = Number(process.env.TIMEOUT_MS ?? 30_000);
const ROUNDS = 15, VISITORS = 20, PAGES = 3; // the feedback for each round is written before the next one

const kafka = new Kafka({clientId: 'own-service', brokers: [bootstrap], logLevel: logLevel.NOTHING});
// The murmur2 hash of the key must determine the partition, so that all records of an event are in the same partition.
// This is the default in kafkajs since version 2; its LegacyPartitioner differs.
const producer = kafka.producer({createPartitioner: Partitioners.DefaultPartitioner});
const run = randomUUID().slice(0, 8); // makes ids unique, because each id is decided only once
const consumer = kafka.consumer({groupId: `${prefix}own-service-${run}`, maxWaitTimeInMs: 100}); // reads committed records
const actions = new Map();
const arrivals = new EventTarget();

async function main() {
  await producer.connect();
  await consumer.connect();
  // Read from the beginning, so that predictions before the partition assignment are not missed.
  await consumer.subscribe({topic: `${prefix}predictions`, fromBeginning: true});
  await consumer.run({eachMessage: async ({message}) => {
    const prediction = JSON.parse(message.value.toString());
    actions.set(prediction.id, prediction.action);
    arrivals.dispatchEvent(new Event('prediction'));
  }});
  const right = [];
  for (let round = 0; round < ROUNDS; round++) {
    const wanted = new Map();
    for (let visitor = 0; visitor < VISITORS; visitor++) {
      wanted.set(`visit-${run}-${round}-${visitor}`, Math.floor(Math.random() * PAGES));
    }
    await send('contexts', [...wanted].map(([id, page]) => ({id, x: interests(page)})));
    await predictionsOf([...wanted.keys()]);
    await send('feedback', [...wanted].map(([id, page]) => ({id, reward: Number(actions.get(id) === page)})));
    right.push([...wanted].filter(([id, page]) => actions.get(id) === page).length);
  }
  const third = ROUNDS / 3;
  const share = (part) => Math.round(100 * part.reduce((sum, n) => sum + n, 0) / (third * VISITORS));
  console.log(`own_service on ${prefix}* at ${bootstrap}: ${ROUNDS * VISITORS} visitors got a page; it was right `
    + `for ${share(right.slice(0, third))}% of the first third and ${share(right.slice(-third))}% of the last third`);
}

function interests(page) {
  return [...Array.from({length: PAGES}, (_, index) => Math.random() / 2 + (index === page ? 1 : 0)), 1];
}

function send(topic, values) {
  const messages = values.map((value) => ({key: value.id, value: JSON.stringify(value)}));
  return producer.send({topic: prefix + topic, acks: -1, messages});
}

function predictionsOf(ids) {
  const missing = () => ids.filter((id) => !actions.has(id)).length;
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(
      `got ${ids.length - missing()} of ${ids.length} predictions within ${timeoutMs / 1000} s. Check that a learner is `
      + `running on these topics with --n-classes ${PAGES} and --n-features ${PAGES + 1}`)), timeoutMs);
    const look = () => {
      if (missing()) return;
      clearTimeout(timer);
      arrivals.removeEventListener('prediction', look);
      resolve();
    };
    arrivals.addEventListener('prediction', look);
    look();
  });
}

try {
  await main();
} catch (error) {
  console.error(`own_service on ${prefix}* at ${bootstrap}: ${error.message}`);
  process.exitCode = 1;
} finally {
  await Promise.allSettled([consumer.disconnect(), producer.disconnect()]);
}
