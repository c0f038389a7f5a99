//! The page in a browser: the report of one run and of several, and the page that follows a run.

mod common;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::tempdir;

use common::browser::{Browser, Look};
use common::paceline;
use common::process::PacelineProcess;

const WIDTHS: [u32; 2] = [1280, 400];

/// How wide the page is, and elements that reach beyond the window.
const OVERFLOW: &str = "(() => {
  const width = document.documentElement.clientWidth;
  const outside = (element) => element.getBoundingClientRect().right > width + 1 && !element.closest('.scroll, pre, .skip');
  const found = [...document.querySelectorAll('body *')].filter(outside).map((element) => `${element.tagName} ${element.textContent.slice(0, 30)}`);
  return document.documentElement.scrollWidth > width ? ['the page', ...found] : found;
})()";

/// Texts whose contrast with what is behind them is below 4.5, and the same for the colours of the canvas.
const CONTRAST: &str = "(() => {
  const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const pixel = (colour) => { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); return [...pen.getImageData(0, 0, 1, 1).data]; };
  const linear = (value) => (value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = (colour) => { const [red, green, blue] = pixel(colour).map(linear); return 0.2126 * red + 0.7152 * green + 0.0722 * blue; };
  const contrast = (one, other) => { const [a, b] = [light(one), light(other)]; return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); };
  const behind = (element) => { for (; element; element = element.parentElement) { const colour = getComputedStyle(element).backgroundColor; if (colour !== 'rgba(0, 0, 0, 0)') return colour; } return '#fff'; };
  const hasText = (element) => element.tagName !== 'SCRIPT' && element.getClientRects().length && [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const colour = (element) => (element instanceof SVGElement ? getComputedStyle(element).fill : getComputedStyle(element).color);
  const texts = [...document.querySelectorAll('body *')].filter(hasText).map((element) => [element.textContent.slice(0, 30), colour(element), behind(element)]);
  const root = getComputedStyle(document.documentElement), paper = root.getPropertyValue('--paper');
  const drawn = ['ink', 'soft', 'alarm'].map((name) => [name, root.getPropertyValue(`--${name}`), paper]);
  return [...texts, ...drawn].filter(([, one, other]) => contrast(one, other) < 4.5);
})()";

/// Everything that the keyboard must reach.
const REACHABLE: &str = "[...document.querySelectorAll('a, button, summary, [tabindex=\"0\"]')].filter((element) => element.checkVisibility())";

/// Scrolls to the end of the page, then looks at it for a second.
const SCROLL: &str = "new Promise((done) => {
  let y = 0;
  const step = () => {
    scrollTo(0, (y += 60));
    if (y < document.documentElement.scrollHeight) requestAnimationFrame(step); else setTimeout(() => done(0), 1000);
  };
  step();
})";

fn simulate(out: &Path, arguments: &[&str]) {
    let output = paceline(&[&["simulate", "--out", out.to_str().unwrap()], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A page about the runs of a folder.
fn report_of(folder: &Path) -> PathBuf {
    let page = folder.join("report.html");
    let output = paceline(&["report", folder.to_str().unwrap(), "--out", page.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    page
}

fn address(page: &Path) -> String {
    format!("file://{}", page.display())
}

fn assert_nothing(browser: &mut Browser, expression: &str, place: &str) {
    assert_eq!(browser.evaluate(expression), json!([]), "{place}");
}

/// In light and dark, wide and narrow: nothing reaches beyond the window, and all text can be read. Nothing went wrong.
fn looks_right(browser: &mut Browser, page: &Path) {
    for width in WIDTHS {
        for dark in [false, true] {
            let look = Look { width, dark };
            browser.look(look);
            browser.open(&address(page));
            assert_nothing(browser, OVERFLOW, &format!("{look:?}"));
            assert_nothing(browser, CONTRAST, &format!("{look:?}"));
        }
    }
    assert_eq!(browser.errors(), [&Value::Null; 0]);
}

/// Tab leads through everything that can be used, each with a visible outline, and arrow keys read every picture.
fn works_by_keyboard(browser: &mut Browser, page: &Path) {
    browser.look(Look { width: 1280, dark: false });
    browser.open(&address(page));
    browser.evaluate(&format!("window.reachable = new Set({REACHABLE})"));
    let count = browser.evaluate("reachable.size").as_u64().unwrap();
    for place in 0..count {
        browser.press("Tab");
        let outlined = "reachable.delete(document.activeElement) && getComputedStyle(document.activeElement).outlineStyle !== 'none'";
        assert_eq!(browser.evaluate(outlined), true, "element {place} of {count}");
    }
    assert_eq!(browser.evaluate("reachable.size"), 0);
    let readout = "document.activeElement.parentElement.querySelector('output').textContent";
    for picture in ["canvas", ".chart svg"] {
        browser.evaluate(&format!("document.querySelector({picture:?}).focus()"));
        let mut seen = vec![browser.evaluate(readout)];
        for key in if picture == "canvas" { &["ArrowRight", "ArrowDown", "+"][..] } else { &["ArrowRight"] } {
            browser.press(key);
            browser.settle();
            seen.push(browser.evaluate(readout));
        }
        assert!(seen[0] != seen[1] && (seen.len() < 3 || seen[1] != seen[2]), "{picture}: {seen:?}");
    }
    assert_eq!(browser.errors(), [&Value::Null; 0]);
}

#[test]
fn the_page_of_a_run_looks_right_and_works_by_keyboard() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    let job = ["--data", "digits:600,200", "--until", "iterations=60", "--slow", "0=3", "--scheme", "lb-bsp"];
    simulate(&run, &job);
    looks_right(&mut browser, &run.join("report.html"));
    works_by_keyboard(&mut browser, &run.join("report.html"));
}

#[test]
fn the_page_of_several_runs_looks_right_and_works_by_keyboard() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempdir().unwrap();
    for scheme in ["backup:k=6", "lb-bsp"] {
        let job = ["--data", "digits:600,200", "--until", "iterations=30", "--slow", "0=3", "--scheme", scheme];
        simulate(&folder.path().join(scheme.replace(':', "_")), &job);
    }
    let page = report_of(folder.path());
    looks_right(&mut browser, &page);
    works_by_keyboard(&mut browser, &page);
    let text = browser.evaluate("document.querySelector('main').textContent").as_str().unwrap().to_string();
    for part in ["2 runs: ", "slower than the others", "updates per step (k)", "batch size (samples), lb-bsp"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(browser.evaluate("document.querySelectorAll('#comparison tr').length"), 3, "a header and two runs");
    let curves = browser.evaluate("document.querySelectorAll('.chart path').length").as_u64().unwrap();
    assert!(curves >= 4 + 8, "curves of two runs, batch sizes of eight workers: {curves}");
}

#[test]
fn the_pages_of_a_race_and_of_a_whatif_show_the_ranking_and_what_all_did_at_the_same_time() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let times = ["--model", "none", "--slow", "0=2.3", "--times", "uniform:0.9,1.1", "--workers", "4"];
    let record = ["--until", "iterations=40", "--record", &path("times.csv")];
    simulate(&folder.path().join("run"), &[&times[..], &record].concat());
    let job =
        ["--model", "softmax", "--data", "digits:600,200", "--until", "loss<0.9,samples=60000", "--seeds", "1..3"];
    let job = [&job[..], &["--schemes", "bsp,backup:k=3,lb-bsp,asp", "--lr", "0.1"]].concat();
    for (command, contestants) in [(vec!["race", "--slow", "0=3"], 6), (vec!["whatif", &path("times.csv")], 4)] {
        let out = folder.path().join(command[0]);
        let output = paceline(&[&command, &job[..], &["--out", out.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let page = out.join("report.html");
        looks_right(&mut browser, &page);
        works_by_keyboard(&mut browser, &page);
        assert_eq!(browser.evaluate("document.querySelectorAll('.ranking .mean').length"), contestants);
        assert_eq!(browser.evaluate("document.querySelectorAll('.ranking circle').length"), 4 * contestants);
        assert_eq!(browser.evaluate("document.querySelectorAll('.multiple canvas').length"), contestants);
        let headings = "[...document.querySelectorAll('h2')].map((heading) => heading.textContent).join()";
        let headings = browser.evaluate(headings).as_str().unwrap().to_string();
        assert!(headings.starts_with("Ranking,What every worker did"), "{headings}");
        let answers = "document.querySelector('.answers').textContent";
        let answers = browser.evaluate(answers).as_str().unwrap().to_string();
        assert!(answers.starts_with("Safe: "), "{answers}");
        assert_eq!(answers.contains("paceline train --scheme"), command[0] == "whatif", "{answers}");
    }
}

#[test]
fn a_thousand_workers_are_drawn_in_short_tasks_and_few_elements() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempdir().unwrap();
    let job = ["--workers", "1000", "--model", "none", "--slow", "0=3", "--until", "iterations=60"];
    simulate(&folder.path().join("bsp"), &[&job[..], &["--scheme", "bsp"]].concat());
    simulate(&folder.path().join("backup"), &[&job[..], &["--scheme", "backup:k=900"]].concat());
    for page in [folder.path().join("bsp/report.html"), report_of(folder.path())] {
        looks_right(&mut browser, &page);
        let elements = browser.evaluate("document.querySelectorAll('*').length").as_u64().unwrap();
        assert!(elements < 1500, "{elements} elements");
        let longest = browser.longest_task(SCROLL);
        assert!(longest < 50.0, "a task of {longest} ms");
    }
}

#[test]
fn the_page_follows_a_run_and_comes_back_after_the_server_restarts() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempdir().unwrap();
    let out = folder.path().join("run").display().to_string();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let at = format!("127.0.0.1:{port}");
    let job = ["--model", "softmax", "--data", "digits:600,200", "--workers", "2", "--scheme", "backup:k=1"];
    let run = ["train", "--http", &at, "--out", &out, "--checkpoint-every", "0.2", "--until", "time=3600"];
    let mut run = PacelineProcess::start(&[&run[..], &job, &["--emulate", "0=deterministic:0.02"]].concat());
    run.await_line("watch the run at");
    run.wait_until(|| fs::read_dir(format!("{out}/checkpoints")).is_ok_and(|files| files.count() > 0));
    browser.look(Look { width: 400, dark: true });
    browser.open(&format!("http://{at}/"));
    browser.wait_until("document.getElementById('state').textContent === 'live'");
    let iterations = "Number(document.title.match(/[0-9]+/)[0])";
    for _ in 0..3 {
        let known = browser.evaluate(iterations);
        browser.wait_until(&format!("{iterations} > {known}"));
    }
    assert_nothing(&mut browser, OVERFLOW, "live");
    assert_nothing(&mut browser, CONTRAST, "live");
    let elements = browser.evaluate("document.querySelectorAll('*').length").as_u64().unwrap();
    assert_eq!(browser.errors(), [&Value::Null; 0]);
    run.kill();
    browser.wait_until("document.getElementById('state').textContent.startsWith('connection lost')");
    let resumed = PacelineProcess::start(&["train", "--http", &at, "--resume", &out, "--until", "time=3600"]);
    resumed.await_line("watch the run at");
    browser.wait_until("document.getElementById('state').textContent === 'live'");
    let known = browser.evaluate(iterations);
    browser.wait_until(&format!("{iterations} > {known}"));
    // It has the same elements, with new content.
    let now = browser.evaluate("document.querySelectorAll('*').length").as_u64().unwrap();
    assert!(now < elements + 200, "{elements} elements, then {now}");
    resumed.signal("INT");
    browser.wait_until("document.getElementById('state').textContent === 'ended'");
    resumed.end();
    let refused = |error: &&Value| !error["entry"]["text"].as_str().is_some_and(|text| text.contains("net::ERR_"));
    assert_eq!(browser.errors().into_iter().filter(refused).collect::<Vec<_>>(), [&Value::Null; 0]);
}
