// The page of the monitor: what comes by server-sent events is put in its places. It computes nothing but shapes.
"use strict";

const at = id => document.getElementById(id);
const count = n => n.toLocaleString("en");
const words = name => name.replaceAll("_", " ");
const percent = (x, digits = 1) => x === null ? "–" : `${(100 * x).toFixed(digits)}\u00a0%`;
const between = interval => interval === null ? "–" : `${(100 * interval[0]).toFixed(1)} to ${percent(interval[1])}`.replaceAll(" ", "\u00a0");
const shown = share => share === null ? "–" : `${percent(share[0])} (${between(share.slice(1))})`;
const seconds = s => s === null ? "–" : s < 1 ? `${Math.round(1000 * s)}\u00a0ms` : s < 120 ? `${s.toFixed(1)}\u00a0s`
  : s < 7200 ? `${(s / 60).toFixed(0)}\u00a0min` : `${(s / 3600).toFixed(1)}\u00a0h`;
const time = ms => new Date(ms).toISOString().slice(11, 19);

function say(element, text) { // only what has changed: a screen reader reads it out
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
    for (const cell of row) line.append(cell instanceof Node ? cell : element("td", cell));
  }
  into.append(made);
}

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function figure(into, label, draw) {
  const width = Math.max(280, into.clientWidth), height = 220;
  const image = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label});
  draw(image, {left: 44, right: width - 12, top: 10, bottom: height - 24});
  into.replaceChildren(image);
}

function unbroken(windows) { // where nothing was matched for a while, the line is not drawn on
  const parts = [];
  let last = -Infinity;
  for (const window of windows) {
    if (window[0] - last > 20_000) parts.push([]);
    parts.at(-1).push(window);
    last = window[0];
  }
  return parts;
}

function drawError(windows) {
  const judged = windows.filter(([, , error]) => error !== null);
  const weighed = judged.filter(([, , , greedy]) => greedy !== null);
  if (!judged.length) return at("error").replaceChildren(element("p", "No decision is matched yet."));
  const last = judged.at(-1), first = judged[0][0], end = Math.max(last[0], first + 60_000);
  const top = Math.min(1, Math.max(0.1, ...judged.map(([, , error]) => error[2]), ...weighed.map(([, , , greedy]) => greedy[0])));
  const label = `Error from ${time(first)} to ${time(last[0])} UTC; last played ${shown(last[2])}, greedy ${shown(last[3])}`;
  figure(at("error"), label, (image, box) => {
    const x = ms => box.left + (box.right - box.left) * (ms - first) / (end - first);
    const y = share => box.bottom - (box.bottom - box.top) * share / top;
    for (const part of [0, 0.5, 1]) {
      image.append(svg("line", {class: "axis", x1: box.left, x2: box.right, y1: y(part * top), y2: y(part * top)}));
      image.append(svg("text", {x: 0, y: y(part * top) + 4}, percent(part * top, 0)));
    }
    image.append(svg("text", {x: box.left, y: box.bottom + 18}, time(first)));
    image.append(svg("text", {x: box.right, y: box.bottom + 18, "text-anchor": "end"}, `${time(end)} UTC`));
    for (const part of unbroken(judged)) {
      const points = number => part.map(([ms, , error]) => `${x(ms)},${y(error[number])}`);
      image.append(svg("polygon", {class: "band", points: [...points(2), ...points(1).reverse()].join(" ")}));
      image.append(svg("polyline", {class: "path", points: points(0).join(" ")}));
    }
    for (const part of unbroken(weighed)) {
      image.append(svg("polyline", {class: "path greedy", points: part.map(([ms, , , greedy]) => `${x(ms)},${y(greedy[0])}`).join(" ")}));
    }
  });
}

function drawDelays({n, bins, quantiles_s}) {
  if (!n) return;
  const [half, most, nearly] = quantiles_s.map(seconds);
  say(at("quantiles"), `Half of the feedback came within ${half}, 90 % within ${most}, 99 % within ${nearly}; of ${count(n)}.`);
  const highest = Math.max(...bins.map(([, , height]) => height));
  figure(at("delays"), `Histogram of ${count(n)} delays, from ${seconds(bins[0][0])} to ${seconds(bins.at(-1)[1])}`, (image, box) => {
    const step = (box.right - box.left) / bins.length;
    bins.forEach(([low, , height], number) => {
      const size = (box.bottom - box.top) * height / highest, x = box.left + number * step;
      image.append(svg("rect", {class: "bar", x: x + 1, y: box.bottom - size, width: Math.max(1, step - 2), height: size}));
      if (number % Math.ceil(56 / step) === 0 && x + 40 < box.right) image.append(svg("text", {x, y: box.bottom + 18}, seconds(low)));
    });
    image.append(svg("text", {x: 0, y: box.top + 6}, count(highest)));
    image.append(svg("line", {class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom}));
  });
}

function drawEstimates(estimates) {
  at("estimates").replaceChildren();
  if (!estimates.length) return at("estimates").append(element("p", "No decision counts yet; those that were not drawn at random, of propensity 1, never do."));
  const means = {greedy: "the highest score", uniform: "each class alike", learner: "the learner's own, while a log's are played"};
  table(at("estimates"), ["policy", "would earn", "95 % now", "95 % at all times", "played", "decisions", "worth"],
    estimates.map(({policy, n, ess, played, off, estimates: [ips, snips]}) => [
      element("td", `${means[policy] ?? policy}${off ? " (not to be trusted: its weights are not 1 in the mean)" : ""}`, "long"), percent(snips[1]), between(snips[2]), between(ips[3]), percent(played), count(n), count(Math.round(ess)),
    ]));
}

function drawLedger(books) {
  at("ledger").replaceChildren();
  for (const {total, value, parts, holds} of books) {
    const sign = element("td", holds ? "✓ adds up" : "✗ does not add up", holds ? "good" : "bad");
    const rows = parts.filter(([, n]) => n).map(([name, n]) => [words(name), count(n)]);
    table(at("ledger"), ["became", "records"], [...rows, [sign, count(value)]], `${words(total)}: ${count(value)}`);
  }
}

function show(picture) {
  say(at("condition"), picture.condition);
  say(at("why"), picture.why);
  at("verdict").dataset.condition = picture.condition;
  document.title = `${picture.condition}: Onebit ${picture.topics ?? ""}`;
  if (!picture.ledger) return; // the monitor has not found Kafka yet
  say(at("topics"), picture.topics);
  const notes = [];
  if (picture.behind > 5000) notes.push(`Windows, delays and classes are ${count(picture.behind)} records behind; the counts are not.`);
  if (picture.sample > 1) notes.push(`More comes than the monitor can follow: it looks at one decision in ${count(picture.sample)}, by a hash of the id. Counts in the ledger are of all.`);
  if (picture.passed_over) notes.push(`Since the beginning ${count(picture.passed_over)} records were passed over so: error, delays, latency and classes are of a sample.`);
  if (picture.unreadable) notes.push(`${count(picture.unreadable)} records in the learner's topics are not the learner's.`);
  say(at("notes"), notes.join(" "));

  const {ledger, error, greedy_error, exploration, latencies: {n, quantiles_s: [half, , nearly]}} = picture;
  const sampled = picture.waiting_sample > 1 ? `, of one in ${count(picture.waiting_sample)}` : "";
  const now = [
    ["decided", count(ledger.decided)], ["pending", count(ledger.pending)], ["matched", count(ledger.matched)],
    ["expired", count(ledger.expired)], ["late", count(ledger.late)], ["misplaced", count(ledger.contexts_misplaced + ledger.feedback_misplaced)],
    [`oldest pending${sampled}`, seconds(picture.oldest_s)],
    ["error, 1 min", shown(error)], ["greedy error, 1 min", shown(greedy_error)], ["explored, 1 min", shown(exploration)],
    ["time to decide, 1 min", n ? `${seconds(half)}; 99\u00a0%: ${seconds(nearly)}` : "–"],
  ];
  at("now").replaceChildren(...now.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));

  say(at("balance"), picture.balanced ? "it adds up in every partition." : "it does not add up; run onebit verify.");
  at("balance").className = picture.balanced ? "good" : "bad";
  drawLedger(picture.books);
  drawError(picture.windows);
  drawDelays(picture.delays);
  drawEstimates(picture.estimates);

  at("partitions").replaceChildren();
  table(at("partitions"), ["partition", "steps", "decided", "pending", "oldest", "contexts wait", "feedback waits", "error", "updates", "drift alarms", "ledger"],
    picture.partitions.map(one => [
      String(one.partition), count(one.steps), count(one.decided), count(one.pending), seconds(one.oldest_s), count(one.contexts),
      count(one.feedback), one.error ? percent(one.error[0]) : "–", count(one.updates), count(one.alarms),
      element("td", one.balanced ? "✓ adds up" : "✗ does not", one.balanced ? "good" : "bad"),
    ]));

  at("classes").replaceChildren();
  table(at("classes"), ["class", "played", "share", "error"],
    picture.classes.map(one => [String(one.action), count(one.decided), percent(one.share), shown(one.error)]));

  at("letters").replaceChildren();
  if (!picture.letters.length) return at("letters").append(element("p", "There are none."));
  table(at("letters"), ["record", element("th", "reason", "text"), "letter", "at (UTC)"],
    picture.letters.map(one => [
      one.source, element("td", one.reason, "long"), `partition ${one.partition}, offset ${one.offset}`, time(one.append_ms),
    ]));
}

function lose() {
  say(at("condition"), "not connected");
  say(at("why"), "the monitor does not answer; this page goes on as soon as it does");
  at("verdict").dataset.condition = "lost";
  document.title = "not connected: Onebit";
}

let silent;
function listen() {
  const source = new EventSource("events");
  const again = () => { source.close(); lose(); clearTimeout(silent); setTimeout(listen, 1000); };
  source.onmessage = event => {
    clearTimeout(silent);
    silent = setTimeout(again, 5000); // a monitor that is frozen closes nothing
    show(JSON.parse(event.data));
  };
  source.onerror = again;
}
listen();
