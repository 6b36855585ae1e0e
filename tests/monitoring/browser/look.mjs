// The monitor's page and a report in headless Chromium, for tests/monitoring/test_page.py.
//
//     node look.mjs REPORT URL FOLDER
//
// opens both pages at each width in light and dark mode, and prints a JSON line for each: the violations that axe-core
// found, and whether any element overflows the page. It writes screenshots to FOLDER. It then prints "moves" when a
// count has changed, "lost" when the page reports that the monitor does not respond, "back" when updates continue, and
// finally the messages of the browser's console.
import {mkdirSync, readFileSync, writeFileSync} from "node:fs";
import {createRequire} from "node:module";
import puppeteer from "puppeteer-core";

// The package unpacks its browser into the temporary folder. It adds libraries and fonts only if the runtime appears to
// be AWS Lambda. Its font configuration refers to /tmp, so pages in another folder would have no text without ours.
const unpacked = new URL("node_modules/.unpacked", import.meta.url).pathname;
Object.assign(process.env, {TMPDIR: unpacked, AWS_LAMBDA_JS_RUNTIME: "nodejs22.x", FONTCONFIG_FILE: `${unpacked}/fonts.conf`});
mkdirSync(unpacked, {recursive: true});
writeFileSync(process.env.FONTCONFIG_FILE,
  `<fontconfig><dir>${unpacked}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>${unpacked}/fonts-cache</cachedir></fontconfig>`);
const {default: chromium} = await import("@sparticuz/chromium");

const [report, url, folder] = process.argv.slice(2);
const WIDTHS = [390, 800, 1280, 2560];
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const say = what => process.stdout.write(`${JSON.stringify(what)}\n`);

chromium.setGraphicsMode = false;
const browser = await puppeteer.launch({
  args: [...chromium.args, "--no-sandbox"], executablePath: await chromium.executablePath(), headless: "shell", timeout: 120_000,
});
const page = await browser.newPage();
const complaints = [];
let restarting = false; // failed requests are expected during the restart
page.on("console", message => {
  if (["error", "warning"].includes(message.type()) && !restarting) complaints.push(message.text());
});
page.on("pageerror", error => complaints.push(String(error)));
await page.setBypassCSP(true); // allows this script to inject axe-core; the page's policy allows only its own scripts

const text = id => page.$eval(`#${id}`, element => element.textContent);
const until = (id, claim, wanted) => page.waitForFunction(
  (id, claim, wanted) => (document.getElementById(id).textContent.includes(wanted)) === claim, {timeout: 60_000}, id, claim, wanted);

async function look(name) {
  for (const scheme of ["light", "dark"]) {
    await page.emulateMediaFeatures([{name: "prefers-color-scheme", value: scheme}]);
    for (const width of WIDTHS) {
      await page.setViewport({width, height: 900});
      await new Promise(done => setTimeout(done, 700)); // the time of two events, so that the figures are redrawn for the new width
      await page.screenshot({path: `${folder}/${name}-${width}-${scheme}.png`, fullPage: true});
      const sticksOut = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      await page.evaluate(axe);
      const {violations} = await page.evaluate(() => axe.run());
      say({name, width, scheme, sticksOut, violations: violations.map(one => `${one.id}: ${one.nodes.map(node => node.html).join(" ")}`)});
    }
  }
}

await page.goto(report);
await look("report");
await page.goto(url);
await until("condition", false, "not connected");
await look("monitor");

const before = await text("now");
await until("now", false, before);
say("moves");
restarting = true;
await until("condition", true, "not connected");
say("lost");
await until("condition", false, "not connected");
say("back");
restarting = false;
await until("now", false, await text("now"));
say({complaints, url: page.url(), condition: await text("condition")});
await browser.close();
