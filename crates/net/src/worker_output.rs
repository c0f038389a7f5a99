//! What worker processes print: every line with the rank before it, and a log for each worker.
//!
//! A thread per process reads its pipes, so a process waits for nobody but the disk. Another thread shows the lines. If
//! it falls behind, readers wait for a second, then leave lines out and say how many. Logs have all of them, byte for
//! byte.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use paceline_core::WorkerId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::output_lines::{OutputLines, OutputUnit, TRACEBACK_PAUSE};
use crate::poller::timespec;

/// How much text may wait to be shown, in bytes.
const QUEUE_CAPACITY: usize = 1 << 20;

/// How much text is shown at once at most, unless it is one unit, in bytes.
const BATCH: usize = 64 * 1024;

/// How long a reader waits for space in the queue before it leaves lines out.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);

/// The end of the output is not shown if nothing could be shown for so long.
const SHOW_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the pipes of a process that has exited are read if others hold them open, and how long they may be quiet.
const PIPE_TIMEOUT: Duration = Duration::from_secs(1);
const PIPE_PAUSE: Duration = Duration::from_millis(100);

/// How many different tracebacks are remembered.
const TRACEBACKS: usize = 100;

/// Where a process wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Shows whole lines, each with its line break.
pub type ShowOutput = Box<dyn Fn(OutputStream, &str) + Send>;

/// Where the output of all workers of a run goes.
pub struct WorkerOutput(Arc<OutputState>);

struct OutputState {
    /// The folder of the logs.
    logs: Option<PathBuf>,
    queue: Mutex<OutputQueue>,
    changed: Condvar,
    /// The tracebacks that were shown.
    tracebacks: Mutex<HashMap<Vec<String>, ShownTraceback>>,
    /// The workers whose logs can't be written.
    unlogged: Mutex<BTreeSet<WorkerId>>,
}

/// Who wrote a traceback first, and what came after it.
struct ShownTraceback {
    worker: WorkerId,
    rest: Vec<String>,
}

/// What waits to be shown.
#[derive(Default)]
struct OutputQueue {
    texts: VecDeque<(OutputStream, String)>,
    bytes: usize,
    /// How often something was taken out and shown.
    shown: u64,
    is_showing: bool,
    /// Whether nothing was shown while a reader waited.
    is_stalled: bool,
    is_closed: bool,
    /// How many lines were left out.
    left_out: BTreeMap<WorkerId, usize>,
}

impl WorkerOutput {
    /// Output that goes to `show`, and to `0.log`, `1.log` and so on in the folder `logs`, and to
    /// `evaluator.log`. Folder and files are created
    /// when there is something to write, and appended to when they exist.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(logs: Option<PathBuf>, show: ShowOutput) -> io::Result<Self> {
        let state = Arc::new(OutputState {
            logs,
            queue: Mutex::default(),
            changed: Condvar::new(),
            tracebacks: Mutex::default(),
            unlogged: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        // It is not joined: a terminal that is stopped must not keep the run from ending.
        thread::Builder::new().name("worker output".into()).spawn(move || shared.show_all(&show))?;
        Ok(WorkerOutput(state))
    }

    /// Reads the pipes of a process that was started with both.
    pub(crate) fn follow(&self, worker: WorkerId, child: &mut Child) -> io::Result<FollowedOutput> {
        let (exit, exited) = io::pipe()?;
        let stdout = child.stdout.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        let stderr = child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        let state = Arc::clone(&self.0);
        let log = WorkerLog { worker, path: state.log_path(worker), file: None };
        let pipe = |stream, file| OutputPipe { stream, file, lines: OutputLines::new(stream == OutputStream::Stderr) };
        let pipes = [pipe(OutputStream::Stdout, stdout), pipe(OutputStream::Stderr, stderr)];
        let reader = PipesReader { worker, state, log, pipes };
        let thread = thread::Builder::new().name(format!("output of {worker}")).spawn(move || reader.run(exit))?;
        Ok(FollowedOutput { exited, thread, state: Arc::clone(&self.0) })
    }
}

impl Drop for WorkerOutput {
    /// Waits until everything is shown, unless nothing can be.
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        for worker in queue.left_out.keys().copied().collect::<Vec<_>>() {
            let text = self.0.left_out(worker, &mut queue);
            queue.push(OutputStream::Stderr, text);
        }
        queue.is_closed = true;
        self.0.changed.notify_all();
        drop(queue);
        self.0.wait_until_shown();
    }
}

/// The output of one process.
pub(crate) struct FollowedOutput {
    /// Closed when the process has exited.
    exited: PipeWriter,
    thread: JoinHandle<()>,
    state: Arc<OutputState>,
}

impl FollowedOutput {
    /// Reads the rest after the process has exited, and waits until it is shown. Both are bounded: the pipes may be
    /// open in processes that it started, and the terminal may be stopped.
    pub(crate) fn finish(self) {
        drop(self.exited);
        // A panic was reported by the thread.
        let _ = self.thread.join();
        self.state.wait_until_shown();
    }
}

impl OutputState {
    fn lock(&self) -> MutexGuard<'_, OutputQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_path(&self, worker: WorkerId) -> Option<PathBuf> {
        self.logs.as_ref().map(|folder| folder.join(format!("{}.log", label(worker))))
    }

    /// Shows what is queued until there is nothing more.
    fn show_all(&self, show: &ShowOutput) {
        loop {
            let wait = |queue: &mut OutputQueue| queue.texts.is_empty() && !queue.is_closed;
            let mut queue = self.changed.wait_while(self.lock(), wait).unwrap_or_else(PoisonError::into_inner);
            let Some((stream, mut text)) = queue.texts.pop_front() else { return };
            while let Some((_, more)) =
                queue.texts.pop_front_if(|(other, more)| *other == stream && text.len() + more.len() <= BATCH)
            {
                text += &more;
            }
            queue.bytes -= text.len();
            queue.is_showing = true;
            drop(queue);
            show(stream, &text);
            let mut queue = self.lock();
            (queue.is_showing, queue.is_stalled) = (false, false);
            queue.shown += 1;
            self.changed.notify_all();
        }
    }

    /// Waits until nothing is queued, or nothing could be shown for [`SHOW_TIMEOUT`].
    fn wait_until_shown(&self) {
        let mut queue = self.lock();
        while !queue.texts.is_empty() || queue.is_showing {
            let shown = queue.shown;
            let waited = self.changed.wait_timeout_while(queue, SHOW_TIMEOUT, |queue| queue.shown == shown);
            let result;
            (queue, result) = waited.unwrap_or_else(PoisonError::into_inner);
            if result.timed_out() {
                return;
            }
        }
    }

    /// Queues whole lines. Returns whether there was space.
    fn queue(&self, worker: WorkerId, stream: OutputStream, text: String) -> bool {
        let is_full = |queue: &mut OutputQueue| !queue.texts.is_empty() && queue.bytes + text.len() > QUEUE_CAPACITY;
        let mut queue = self.lock();
        if !queue.is_stalled {
            let waited = self.changed.wait_timeout_while(queue, QUEUE_TIMEOUT, is_full);
            let result;
            (queue, result) = waited.unwrap_or_else(PoisonError::into_inner);
            queue.is_stalled |= result.timed_out();
        }
        if is_full(&mut queue) {
            *queue.left_out.entry(worker).or_default() += text.lines().count();
            return false;
        }
        if queue.left_out.contains_key(&worker) {
            let left_out = self.left_out(worker, &mut queue);
            queue.push(stream, left_out);
        }
        queue.push(stream, text);
        self.changed.notify_all();
        true
    }

    /// A line that says how many lines of a worker were left out since the last one that said so.
    fn left_out(&self, worker: WorkerId, queue: &mut OutputQueue) -> String {
        let count = queue.left_out.remove(&worker).unwrap_or_default();
        let place = self.log_path(worker).map_or(String::new(), |path| format!("; see {}", path.display()));
        format!("[{}] {count} lines are not shown, since the terminal was too slow{place}\n", label(worker))
    }

    /// Shows a unit. A traceback is shown once.
    fn show(&self, worker: WorkerId, stream: OutputStream, unit: OutputUnit) {
        let (error, mut rest) = match unit {
            OutputUnit::Line(line) => {
                self.queue(worker, stream, prefixed(worker, &[line]));
                return;
            }
            OutputUnit::Traceback { error, rest } => (error, rest),
        };
        let mut tracebacks = self.tracebacks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ShownTraceback { worker: first, rest: first_rest }) = tracebacks.get(&error) {
            if rest == *first_rest {
                rest.clear();
            }
            let same =
                if *first == worker { "the same error again".into() } else { format!("the same error as {first}") };
            rest.insert(0, same);
            self.queue(worker, stream, prefixed(worker, &rest));
        } else {
            let text = prefixed(worker, &error) + &prefixed(worker, &rest);
            if self.queue(worker, stream, text) && tracebacks.len() < TRACEBACKS {
                tracebacks.insert(error, ShownTraceback { worker, rest });
            }
        }
    }
}

impl OutputQueue {
    fn push(&mut self, stream: OutputStream, text: String) {
        self.bytes += text.len();
        self.texts.push_back((stream, text));
    }
}

/// What stands before the lines of a worker, and names its log.
fn label(worker: WorkerId) -> String {
    if worker == WorkerId::EVALUATOR { "evaluator".into() } else { worker.0.to_string() }
}

/// The lines with the rank before each.
fn prefixed(worker: WorkerId, lines: &[String]) -> String {
    let mut text = String::new();
    for line in lines {
        // Writing to a string can't fail.
        let _ = writeln!(text, "[{}] {line}", label(worker));
    }
    text
}

/// One pipe of a process.
struct OutputPipe {
    stream: OutputStream,
    /// `None` after its end.
    file: Option<File>,
    lines: OutputLines,
}

/// Reads the pipes of one process.
struct PipesReader {
    worker: WorkerId,
    state: Arc<OutputState>,
    log: WorkerLog,
    pipes: [OutputPipe; 2],
}

impl PipesReader {
    /// Reads until both pipes end. After `exit` has ended, so has the process: what others write is read for a while.
    fn run(mut self, exit: PipeReader) {
        let mut deadline: Option<Instant> = None;
        while self.pipes.iter().any(|pipe| pipe.file.is_some()) && deadline.is_none_or(|end| Instant::now() < end) {
            let is_waiting = self.pipes.iter().any(|pipe| pipe.lines.is_waiting());
            let timeout = deadline.map(|_| PIPE_PAUSE).or(is_waiting.then_some(TRACEBACK_PAUSE));
            let open = self.pipes.iter().filter_map(|pipe| pipe.file.as_ref());
            let mut ready: Vec<_> = open.map(|file| PollFd::new(file, PollFlags::IN)).collect();
            if deadline.is_none() {
                ready.push(PollFd::new(&exit, PollFlags::IN));
            }
            match poll(&mut ready, timeout.map(timespec).as_ref()) {
                Ok(0) if deadline.is_some() => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
            let mut is_ready = ready.iter().map(|file| !file.revents().is_empty()).collect::<VecDeque<_>>();
            drop(ready);
            for index in 0..self.pipes.len() {
                if self.pipes[index].file.is_some() && is_ready.pop_front() == Some(true) {
                    self.read(index);
                }
                let units = self.pipes[index].lines.wait(Instant::now());
                self.show(index, units);
            }
            if is_ready.pop_front() == Some(true) {
                deadline = Some(Instant::now() + PIPE_TIMEOUT);
            }
        }
        for index in 0..self.pipes.len() {
            let units = self.pipes[index].lines.finish(Instant::now());
            self.show(index, units);
        }
    }

    fn read(&mut self, index: usize) {
        let pipe = &mut self.pipes[index];
        let Some(file) = &mut pipe.file else { return };
        let mut buffer = [0; 16 * 1024];
        match file.read(&mut buffer) {
            Ok(0) => pipe.file = None,
            Ok(count) => {
                self.log.write(&buffer[..count], &self.state);
                let units = pipe.lines.push(&buffer[..count], Instant::now());
                self.show(index, units);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => pipe.file = None,
        }
    }

    fn show(&self, index: usize, units: Vec<OutputUnit>) {
        let stream = self.pipes[index].stream;
        units.into_iter().for_each(|unit| self.state.show(self.worker, stream, unit));
    }
}

/// The log of a worker.
struct WorkerLog {
    worker: WorkerId,
    /// `None` without a log, or after an error.
    path: Option<PathBuf>,
    /// `None` until there is something to write.
    file: Option<File>,
}

impl WorkerLog {
    /// Appends to the log. The first error of a worker is shown.
    fn write(&mut self, bytes: &[u8], state: &OutputState) {
        let WorkerLog { worker, ref path, ref mut file } = *self;
        let Some(path) = path else { return };
        let written = match file {
            Some(file) => file.write_all(bytes),
            None => open(path, worker).and_then(|new| file.insert(new).write_all(bytes)),
        };
        let Err(error) = written else { return };
        if state.unlogged.lock().unwrap_or_else(PoisonError::into_inner).insert(worker) {
            let text = format!("the output of {worker} is not logged to {}: {error}\n", path.display());
            state.queue(worker, OutputStream::Stderr, text);
        }
        self.path = None;
    }
}

/// Opens a log for appending. If it has something, the worker was started again, which a line says.
fn open(path: &Path, worker: WorkerId) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    if file.metadata()?.len() > 0 {
        writeln!(file, "\n--- {worker} was started again ---")?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Output whose shown text arrives at a channel.
    fn output(logs: Option<&Path>) -> (WorkerOutput, Receiver<(OutputStream, String)>) {
        let (sender, shown) = channel();
        // It fails only after the test.
        let show = move |stream, text: &str| _ = sender.send((stream, text.into()));
        (WorkerOutput::new(logs.map(Path::to_path_buf), Box::new(show)).unwrap(), shown)
    }

    /// Output that is shown piece by piece, whenever something is sent. Dropping the sender shows everything.
    fn slow_output(logs: Option<&Path>) -> (WorkerOutput, Sender<()>, Receiver<String>) {
        let (sender, shown) = channel();
        let (next, is_next) = channel();
        let show = move |_, text: &str| {
            // Nothing is sent after the sender was dropped.
            let _ = is_next.recv();
            let _ = sender.send(text.to_string());
        };
        (WorkerOutput::new(logs.map(Path::to_path_buf), Box::new(show)).unwrap(), next, shown)
    }

    fn start(output: &WorkerOutput, worker: u32, script: &str) -> (Child, FollowedOutput) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let followed = output.follow(WorkerId(worker), &mut child).unwrap();
        (child, followed)
    }

    fn run(output: &WorkerOutput, worker: u32, script: &str) {
        let (mut child, followed) = start(output, worker, script);
        child.wait().unwrap();
        followed.finish();
    }

    fn text(shown: &Receiver<(OutputStream, String)>) -> String {
        shown.try_iter().map(|(_, text)| text).collect()
    }

    const TRACEBACK: &str = "Traceback (most recent call last):\n  File x\nValueError: broken";

    #[test]
    fn lines_have_ranks_and_logs_have_every_byte() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("workers");
        let (output, shown) = output(Some(&logs));
        run(&output, 2, "printf 'epoch 1\\nhalf'; exec 1>&-; sleep 0.2; printf 'b\\377d\\n' >&2");
        run(&output, 3, "");
        drop(output);
        let (mut stdout, mut stderr) = (String::new(), String::new());
        for (stream, text) in shown.try_iter() {
            *(if stream == OutputStream::Stdout { &mut stdout } else { &mut stderr }) += &text;
        }
        assert_eq!((&stdout[..], &stderr[..]), ("[2] epoch 1\n[2] half\n", "[2] b\u{FFFD}d\n"));
        assert_eq!(fs::read(logs.join("2.log")).unwrap(), b"epoch 1\nhalfb\xFFd\n");
        assert!(!logs.join("3.log").exists(), "it wrote nothing");
    }

    #[test]
    fn a_log_is_appended_to_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (output, _shown) = output(Some(folder.path()));
        run(&output, 0, "echo one");
        run(&output, 0, "echo two");
        assert_eq!(
            fs::read_to_string(folder.path().join("0.log")).unwrap(),
            "one\n\n--- worker 0 was started again ---\ntwo\n"
        );
    }

    #[test]
    fn a_log_that_cannot_be_written_costs_one_warning() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let (output, shown) = output(Some(&file));
        run(&output, 0, "echo one; sleep 0.1; echo two");
        run(&output, 0, "echo three");
        let shown = text(&shown);
        let (warning, lines) = shown.split_once('\n').unwrap();
        assert!(warning.starts_with("the output of worker 0 is not logged to "), "{warning}");
        assert_eq!(lines, "[0] one\n[0] two\n[0] three\n");
    }

    #[test]
    fn workers_that_write_at_once_write_whole_lines() {
        let (output, shown) = output(None);
        let script = "for i in 1 2 3 4 5 6 7 8 9; do printf 'a'; printf 'b'; printf 'c\\n'; done";
        let processes: Vec<_> = (0..4).map(|worker| start(&output, worker, script)).collect();
        for (mut child, followed) in processes {
            child.wait().unwrap();
            followed.finish();
        }
        let shown = text(&shown);
        for worker in 0..4 {
            assert_eq!(shown.lines().filter(|line| *line == format!("[{worker}] abc")).count(), 9, "{shown}");
        }
        assert_eq!(shown.lines().count(), 36);
    }

    #[test]
    fn a_traceback_is_shown_once() {
        let (output, shown) = output(None);
        let fail = format!("printf '%s\\n' '{TRACEBACK}' >&2");
        run(&output, 0, &fail);
        let whole = "[0] Traceback (most recent call last):\n[0]   File x\n[0] ValueError: broken\n";
        assert_eq!(text(&shown), whole);
        run(&output, 3, &fail);
        assert_eq!(text(&shown), "[3] the same error as worker 0\n");
        run(&output, 0, &fail);
        assert_eq!(text(&shown), "[0] the same error again\n");
        // A worker that lives on.
        run(&output, 1, &format!("{fail}; echo goes on >&2"));
        assert_eq!(text(&shown), "[1] the same error as worker 0\n[1] goes on\n");
        run(&output, 1, &format!("{}; echo goes on >&2", fail.replace("broken", "other")));
        assert_eq!(text(&shown), whole.replace("broken", "other").replace("[0]", "[1]") + "[1] goes on\n");
    }

    #[test]
    fn a_traceback_of_a_worker_that_runs_on_is_shown_after_a_pause() {
        let (output, shown) = output(None);
        let (mut child, followed) = start(&output, 0, &format!("printf '%s\\n' '{TRACEBACK}' >&2; exec sleep 300"));
        assert_eq!(shown.recv().unwrap().1.lines().count(), 3);
        child.kill().unwrap();
        child.wait().unwrap();
        followed.finish();
    }

    #[test]
    fn a_grandchild_with_the_pipe_does_not_keep_the_run() {
        let (output, shown) = output(None);
        let (mut child, followed) = start(&output, 0, "sleep 300 & echo $!");
        child.wait().unwrap();
        let start = Instant::now();
        followed.finish();
        assert!(start.elapsed() < Duration::from_secs(60));
        let shown = text(&shown);
        let grandchild = shown.trim().strip_prefix("[0] ").unwrap().to_string();
        assert!(Command::new("kill").arg(grandchild).status().unwrap().success());
    }

    #[test]
    fn a_stopped_terminal_keeps_no_worker_and_what_it_misses_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let (output, next, shown) = slow_output(Some(folder.path()));
        // Much more than the queue and the pipe hold.
        let lines = 40_000;
        let line = "x".repeat(99);
        let script = format!("yes {line} | head -n {lines}");
        run(&output, 0, &script);
        let log = fs::metadata(folder.path().join("0.log")).unwrap();
        assert_eq!(log.len(), lines * 100);
        drop(next);
        drop(output);
        let shown: String = shown.iter().collect();
        let (left_out, lines_shown): (Vec<_>, Vec<_>) =
            shown.lines().partition(|shown| shown.contains("are not shown"));
        let [left_out] = left_out[..] else { panic!("{left_out:?}") };
        let count: u64 = left_out.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(count + lines_shown.len() as u64, lines);
        assert!(left_out.ends_with("0.log"), "{left_out}");
    }
}
