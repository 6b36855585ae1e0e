// Sends requests with Microsoft's JavaScript client for Personalizer, unchanged, and prints the results as JSON.
// Usage: node client.mjs ENDPOINT KEY
import personalizer from "@azure/cognitiveservices-personalizer";
import { ApiKeyCredentials } from "@azure/ms-rest-js";

const [endpoint, key] = process.argv.slice(2);

function clientWith(secret) {
  const credentials = new ApiKeyCredentials({ inHeader: { "Ocp-Apim-Subscription-Key": secret } });
  return new personalizer.PersonalizerClient(credentials, endpoint);
}

const client = clientWith(key);
const request = {
  contextFeatures: [{ timeOfDay: "Morning" }, { user: { subscriber: true } }],
  actions: [
    { id: "NewsArticle", features: [{ type: "News" }] },
    { id: "SportsArticle", features: [{ type: "Sports", minutes: [3, 5] }] },
    { id: "EntertainmentArticle", features: [{ type: "Entertainment" }] },
  ],
  excludedActions: ["SportsArticle"],
  eventId: "javascript/1",
  deferActivation: true,
};

async function failure(call) {
  try {
    await call();
  } catch (error) {
    return { name: error.name, status: error.statusCode, code: error.body?.error?.code };
  }
  return null;
}

const { ranking, eventId, rewardActionId } = await client.rank(request);
const activated = await client.events.activate(eventId);
const rewarded = await client.events.reward(eventId, { value: 0.25 });
const failures = {
  key: await failure(() => clientWith("wrong").rank(request)),
  actions: await failure(() => client.rank({ actions: [] })),
  reward: await failure(() => client.events.reward(eventId, { value: 7 })),
};
const statuses = [activated._response.status, rewarded._response.status];
console.log(JSON.stringify({ ranking, eventId, rewardActionId, statuses, failures }));
