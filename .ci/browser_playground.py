"""The checks of .ci/browser-playground. Arguments: the page, the WebDriver server, Chromium, a new profile directory."""

import base64
import json
import os
import re
import sys
import time
import urllib.request

page, driver, chromium, profile = sys.argv[1:]
TAB, SPACE, DOWN = "\ue004", " ", "\ue015"
SETUPS = [
    "algorithm=gcra&limit=20&burst=5&load=200",
    "algorithm=fixed-window&compare=sliding-log&traffic=edge&limit=50&load=100",
    "algorithm=leaky-queue&compare=token-bucket-steps&traffic=bursts&period=10s",
    "algorithm=aligned-window&compare=gcra&period=month&limit=300&load=120",
    "algorithm=sliding-segments&compare=concurrency&traffic=attack",
    "algorithm=gcra&compare=gcra&traffic=instances&store=separate",
    "algorithm=token-bucket&traffic=outage&failure=closed",
    "algorithm=leaky-meter&traffic=outage&failure=open&time=5s",
]


def fetch(url, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


class Browser:
    def __init__(self):
        arguments = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={profile}", "--hide-scrollbars",
        ]
        options = {"binary": chromium, "args": arguments}
        capabilities = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
        self.base = f"{driver}/session"
        self.base += "/" + self.call("", {"capabilities": capabilities})["sessionId"]

    def call(self, path, body=None, method=None):
        return json.loads(fetch(self.base + path, body, method))["value"]

    def run(self, script, *args):
        return self.call("/execute/sync", {"script": script, "args": list(args)})

    def command(self, name, **params):
        return self.call("/goog/cdp/execute", {"cmd": name, "params": params})

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **metrics)

    def scheme(self, value):
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def open(self, query):
        self.call("/url", {"url": f"{page}/?{query}"})
        self.until("return document.body.dataset.state !== 'running'")
        # The page draws with the next frame.
        self.run("return new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")

    def until(self, script):
        for _ in range(600):
            if self.run(script):
                return
            time.sleep(0.05)
        raise AssertionError(f"it does not become true: {script}")

    def keys(self, *keys):
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def picture(self, name):
        if directory := os.environ.get("SCREENSHOTS"):
            data = self.call("/screenshot")
            with open(os.path.join(directory, name), "wb") as file:
                file.write(base64.b64decode(data))


def check(name, is_true, detail=""):
    if not is_true:
        raise AssertionError(f"FAILED: {name}: {detail}")


def shown(browser):
    """What the page shows of each side: the totals, the sums of its bars' data, the last frame's headers and the code."""
    return browser.run("""return [...document.querySelectorAll('.side')].map((side, number) => ({
        totals: [...side.querySelectorAll('.totals dd')].map((dd) => Number(dd.textContent)),
        clients: [...side.querySelectorAll('.clients tbody tr')].map((row) => [...row.querySelectorAll('td')].map((td) => Number(td.textContent))),
        periods: [...side.querySelectorAll('.periods tbody tr')].map((row) => [...row.querySelectorAll('td')].map((td) => Number(td.textContent))),
        bars: ['admitted', 'delayed', 'denied', 'unavailable'].map((kind) => side.querySelectorAll(`.responses rect.${kind}`).length),
        admission: side.querySelector('.admission').textContent, rejection: side.querySelector('.rejection').textContent,
        rust: document.querySelectorAll('.rust')[number].textContent, toml: document.querySelectorAll('.toml')[number].textContent,
        level: side.querySelector('.level').getAttribute('aria-label') }))""")


def expected(query):
    heading, *frames = map(json.loads, fetch(f"{page}/api/run?{query}").splitlines())
    sides = []
    for number, side in enumerate(heading["sides"]):
        reports = [frame["sides"][number] for frame in frames]
        columns = list(zip(*(report["counts"] for report in reports)))
        last = lambda kind: ([report[kind] for report in reports if report[kind]] or ["none yet"])[-1]
        periods = [[sum(column[start:start + 15]) for column in columns] for start in range(0, 60, 15)]
        levels = [report["levels"][0] for report in reports if report["levels"][0] is not None]
        level = f"Remaining units of {heading['clients'][0]} over time, of {side['capacity']}: " \
            f"lowest {min(levels)}, at the end {levels[-1]}."
        sides.append({
            "totals": [sum(column) for column in columns], "clients": reports[-1]["totals"], "periods": periods,
            "bars": [sum(1 for count in column if count) for column in columns], "level": level,
            "admission": last("admission"), "rejection": last("rejection"), "rust": side["rust"], "toml": side["toml"],
        })
    return sides


def numbers_are_the_servers(browser):
    for query in SETUPS:
        browser.open(query)
        seen, wanted = shown(browser), expected(query)
        for side in seen + wanted:
            # The pause after a failure of the store is random.
            if "HTTP/1.1 503" in side["rejection"]:
                side["rejection"] = re.sub("retry-after: [1-9]", "retry-after: N", side["rejection"])
        check(f"the numbers of {query}", seen == wanted, f"\n  the page:   {seen}\n  the server: {wanted}")
        summary = browser.run("return document.getElementById('summary').textContent")
        for side in wanted:
            check(f"the summary of {query}", f"admitted {side['totals'][0]}" in summary, summary)


def keyboard_changes_the_address(browser):
    browser.open("algorithm=gcra&limit=10")
    browser.run("document.querySelector('[name=algorithm]').focus()")
    browser.keys(DOWN)
    browser.until("return location.search.includes('algorithm=token-bucket&')")
    browser.keys(TAB, TAB, "5")
    browser.until("return location.search.includes('limit=')  && document.body.dataset.state === 'done'")
    address = browser.run("return location.search")
    order = []
    browser.run("document.querySelector('[name=algorithm]').focus()")
    for _ in range(14):
        order.append(browser.run("return document.activeElement.name || document.activeElement.id"))
        browser.keys(TAB)
    expected_order = ["algorithm", "compare", "limit", "burst", "period", "failure", "traffic", "load", "store", "time",
                      "run", "stop", "share", "outage"]
    check("the order of the fields", order == expected_order, order)
    before = shown(browser)
    browser.call("/url", {"url": page + "/" + address})
    browser.until("return document.body.dataset.state === 'done'")
    check("an address restores the setup", shown(browser) == before, address)


def problems_are_at_their_field(browser):
    browser.open("algorithm=fixed-window&burst=20")
    found = browser.run("""const field = document.querySelector('[aria-invalid=true]');
        return [field?.name, document.getElementById('problem').textContent]""")
    check("the problem", found == ["algorithm", "a fixed window has no burst: leave out `burst`, or use `Gcra`"], found)
    browser.open("limits=5&length=3")
    problem = browser.run("return document.getElementById('problem').textContent")
    check("the problem of an address", problem == "unknown parameter `limits`", problem)


def switch_makes_the_store_fail(browser):
    browser.open("failure=closed")
    check("no rejection without an outage", shown(browser)[0]["totals"][3] == 0)
    browser.run("document.getElementById('outage').focus()")
    browser.keys(SPACE)
    browser.until("return document.body.dataset.state === 'done' && document.querySelector('.totals .unavailable dd').textContent === '60'")
    browser.keys(SPACE)
    browser.until("return document.body.dataset.state === 'done' && document.querySelector('.totals .unavailable dd').textContent === '0'")


def runs_are_live_and_stop(browser):
    browser.call("/url", {"url": f"{page}/?failure=closed&time=60s"})
    browser.until("return document.querySelector('.totals .admitted dd')?.textContent > 0")
    browser.run("document.getElementById('outage').focus()")
    browser.keys(SPACE)
    browser.until("return document.querySelectorAll('.responses rect.unavailable').length > 0")
    browser.run("document.getElementById('stop').focus()")
    browser.keys(SPACE)
    browser.until("return document.body.dataset.state === 'stopped'")
    focused, summary = browser.run("return [document.activeElement.id, document.getElementById('summary').textContent]")
    check("Stop keeps the focus and reports", focused == "stop" and summary.startswith("Stopped. 60 requests. GCRA: admitted"), summary)


def every_control_has_a_name(browser):
    nameless = browser.run("""return [...document.querySelectorAll('input, select, button, svg[role=img], pre, progress')]
        .filter((element) => !(element.labels?.length || element.getAttribute('aria-label') || element.textContent.trim()))
        .map((element) => element.outerHTML.slice(0, 80))""")
    check("each control has a name", nameless == [], nameless)


def layout_fits_and_does_not_shift(browser):
    shifts = """const observer = new PerformanceObserver(() => {});
        observer.observe({ type: 'layout-shift', buffered: true });
        return observer.takeRecords().reduce((sum, entry) => sum + entry.value, 0)"""
    for width in (360, 768, 1280):
        browser.size(width, 1600)
        browser.open("algorithm=gcra&compare=fixed-window&traffic=outage&failure=closed&time=5s")
        found = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
        check(f"the page is not wider than {width} px", found[0] <= width, found)
        shift = browser.run(shifts)
        check(f"the layout of {width} px does not shift", shift < 0.02, shift)
    browser.size(1280, 800)


def themes_switch(browser):
    ground = "return getComputedStyle(document.body).backgroundColor"
    browser.open("")
    browser.scheme("light")
    light = browser.run(ground)
    browser.scheme("dark")
    dark = browser.run(ground)
    check("the system's theme applies", light != dark, light)
    browser.run("const theme = document.getElementById('theme'); theme.value = 'light'; theme.dispatchEvent(new Event('change'))")
    check("the switch overrides the system", browser.run(ground) == light)
    browser.run("localStorage.removeItem('theme')")
    browser.scheme("light")


def pictures(browser):
    query = "algorithm=gcra&compare=fixed-window&limit=20&period=minute&traffic=edge&load=100"
    for name, scheme, width, height in [("light", "light", 1280, 1130), ("dark", "dark", 1280, 1130), ("narrow", "light", 360, 1900)]:
        browser.size(width, height)
        browser.scheme(scheme)
        browser.open(query)
        browser.picture(f"playground-{name}.png")


browser = Browser()
try:
    for test in (numbers_are_the_servers, keyboard_changes_the_address, problems_are_at_their_field, switch_makes_the_store_fail,
                 runs_are_live_and_stop, every_control_has_a_name, layout_fits_and_does_not_shift, themes_switch, pictures):
        test(browser)
        print("ok:", test.__name__.replace("_", " "))
finally:
    browser.call("", method="DELETE")
