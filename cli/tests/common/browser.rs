//! Chromium without a window, driven over its debugging pipe: messages as JSON, each ended by a zero byte.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Set where no test may be skipped.
const ALL_TESTS: &str = "PACELINE_ALL_TESTS";

/// The longest time that a test waits for anything.
const TIMEOUT: Duration = Duration::from_secs(300);

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// It reads commands from file 3 and answers to file 4.
const START: &str = r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#;

/// What keeps it from doing anything but what it is told.
const FLAGS: [&str; 11] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-pipe",
    "about:blank",
];

/// How a page is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub width: u32,
    pub dark: bool,
}

/// A browser with one page.
pub struct Browser {
    process: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    /// The page's.
    session: Option<String>,
    last_id: u64,
    /// What the page told unasked.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// `None`, and a line, on a machine without Chromium.
    pub fn start() -> Option<Self> {
        let runs = |name: &&str| {
            Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
        };
        let Some(name) = NAMES.into_iter().find(runs) else {
            assert!(std::env::var_os(ALL_TESTS).is_none(), "no Chromium; install the package chromium");
            println!("skipped: no Chromium on this machine; install the package chromium");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", START, name, &format!("--user-data-dir={}", profile.path().display())]).args(FLAGS);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, messages) = channel();
        let answers = BufReader::new(process.stdout.take().unwrap()).split(0);
        let mut parsed = answers.map_while(Result::ok).map(|text| serde_json::from_slice(&text).unwrap());
        thread::spawn(move || parsed.try_for_each(|message| sender.send(message)));
        let commands = process.stdin.take().unwrap();
        let mut browser =
            Browser { process, commands, messages, session: None, last_id: 0, events: Vec::new(), _profile: profile };
        let targets = browser.call("Target.getTargets", json!({}));
        let page = targets["targetInfos"].as_array().unwrap().iter().find(|target| target["type"] == "page").unwrap();
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(String::from);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Carries out a command, and returns its result.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": parameters });
        self.session.iter().for_each(|session| message["sessionId"] = json!(session));
        self.commands.write_all(format!("{message}\0").as_bytes()).expect("Chromium runs");
        loop {
            let mut answer = self.receive();
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    fn receive(&self) -> Value {
        self.messages.recv_timeout(TIMEOUT).expect("Chromium answers")
    }

    /// Waits for an event. What the page told before that does not count.
    fn await_event(&mut self, method: &str) -> Value {
        loop {
            let event = self.receive();
            self.events.push(event.clone());
            if event["method"] == method {
                return event;
            }
        }
    }

    pub fn look(&mut self, Look { width, dark }: Look) {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        self.settle();
    }

    /// Opens a page, and waits until it is drawn.
    pub fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({ "url": address }));
        self.await_event("Page.loadEventFired");
        self.settle();
    }

    /// Waits until the page has nothing to do.
    pub fn settle(&mut self) {
        self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => requestIdleCallback(done)))).then(() => 0)",
        );
    }

    /// The value of an expression; of a promise, what it is fulfilled with.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub fn wait_until(&mut self, expression: &str) {
        let start = Instant::now();
        while self.evaluate(&format!("Boolean({expression})")) != true {
            assert!(start.elapsed() < TIMEOUT, "never true: {expression}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses a key: `Tab` or `ArrowLeft`, or a character.
    pub fn press(&mut self, key: &str) {
        let code = if key == "Tab" { 9 } else { 0 };
        let event = |kind| json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
        self.call("Input.dispatchKeyEvent", event("rawKeyDown"));
        self.call("Input.dispatchKeyEvent", event("keyUp"));
    }

    /// What went wrong on the page so far.
    pub fn errors(&self) -> Vec<&Value> {
        let is_error = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Log.entryAdded") => true,
            Some("Runtime.consoleAPICalled") => matches!(event["params"]["type"].as_str(), Some("error" | "warning")),
            _ => false,
        };
        self.events.iter().filter(is_error).map(|event| &event["params"]).collect()
    }

    /// The longest task of the page while an expression is evaluated, in milliseconds of its thread's own time: what other
    /// processes take does not count.
    pub fn longest_task(&mut self, expression: &str) -> f64 {
        let categories = json!(["toplevel", "disabled-by-default-devtools.timeline"]);
        let parameters = json!({ "traceConfig": { "includedCategories": categories }, "transferMode": "ReportEvents" });
        self.call("Tracing.start", parameters);
        self.evaluate(expression);
        let before = self.events.len();
        self.call("Tracing.end", json!({}));
        if !self.events[before..].iter().any(|event| event["method"] == "Tracing.tracingComplete") {
            self.await_event("Tracing.tracingComplete");
        }
        let parts = self.events.iter().filter(|event| event["method"] == "Tracing.dataCollected");
        let entries: Vec<&Value> = parts.flat_map(|event| event["params"]["value"].as_array().unwrap()).collect();
        let thread = |entry: &Value| (entry["pid"].as_u64(), entry["tid"].as_u64());
        let main_thread = |entry: &&&Value| entry["args"]["name"] == "CrRendererMain";
        let main: HashSet<_> = entries.iter().filter(main_thread).map(|entry| thread(entry)).collect();
        let tasks = entries.iter().filter(|entry| main.contains(&thread(entry)));
        let tasks = tasks.filter(|entry| entry["name"].as_str().is_some_and(|name| name.ends_with("RunTask")));
        let times: Vec<f64> = tasks.filter_map(|entry| entry["tdur"].as_f64()).collect();
        assert!(times.len() > 10, "the page did nothing: {times:?}");
        times.into_iter().fold(0.0, f64::max) / 1000.0
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
