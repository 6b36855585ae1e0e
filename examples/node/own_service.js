// A service that learns which of three pages its visitors want, from one late bit: were they content?
//
// The same as examples/own_service.py, in JavaScript. It knows Kafka and JSON, and nothing of Onebit. It ends by itself,
// says how many visitors got the right page, and exits with 1 when predictions do not come.
//
//     npm ci --prefix examples/node
//     onebit topics create --topic-prefix own.
//     onebit learn --topic-prefix own. --n-classes 3 --n-features 4 --learner banditron     # in a terminal of its own
//     ONEBIT_TOPIC_PREFIX=own. node examples/node/own_service.js

import {randomUUID} from 'node:crypto';
import {Kafka, Partitioners, logLevel} from 'kafkajs';

const bootstrap = process.env.ONEBIT_BOOTSTRAP ?? 'localhost:9092';
const prefix = process.env.ONEBIT_TOPIC_PREFIX ?? 'onebit.';
const timeoutMs = Number(process.env.TIMEOUT_MS ?? 30_000);
const ROUNDS = 15, VISITORS = 20, PAGES = 3; // the feedback of one round is written before the next one begins

const kafka = new Kafka({clientId: 'own-service', brokers: [bootstrap], logLevel: logLevel.NOTHING});
// The partition must be murmur2 of the key, so that all records of an event meet: that is the default partitioner of
// kafkajs since its version 2. Its LegacyPartitioner is another one.
const producer = kafka.producer({createPartitioner: Partitioners.DefaultPartitioner});
const run = randomUUID().slice(0, 8); // an id that has been decided already would not be decided again
const consumer = kafka.consumer({groupId: `${prefix}own-service-${run}`, maxWaitTimeInMs: 100}); // reads what is committed
const actions = new Map();
const arrivals = new EventTarget();

async function main() {
  await producer.connect();
  await consumer.connect();
  // From the beginning: a prediction that comes before the group has dealt its partitions would be missed otherwise.
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
  console.log(`own_service on ${prefix}* at ${bootstrap}: ${ROUNDS * VISITORS} visitors got a page; it was the right one `
    + `for ${share(right.slice(0, third))} % of the first third, and for ${share(right.slice(-third))} % of the last third`);
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
      `got ${ids.length - missing()} of ${ids.length} predictions within ${timeoutMs / 1000} s; does a learner run on the `
      + `same topics, with --n-classes ${PAGES} and --n-features ${PAGES + 1}?`)), timeoutMs);
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
