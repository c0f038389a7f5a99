//! The machine: processors, memory, limits, clock.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, statvfs};
use rustix::process::{Resource, getrlimit};

use super::Finding;

/// How long another program may take.
const TIMEOUT: Duration = Duration::from_secs(10);

const GIB: f64 = (1u64 << 30) as f64;

/// What is found of the machine.
pub fn findings() -> Vec<Finding> {
    vec![
        Finding::fine("host", read("/proc/sys/kernel/hostname").unwrap_or_else(|| "without a name".into())),
        processors(),
        memory(),
        gpus(),
        shared_memory(),
        loader_memory(),
        open_files(),
        locked_memory(),
        clock(),
    ]
}

/// A file of the system, without the line break.
pub fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

/// What a program prints; `None` if it is not there, fails, or takes too long.
pub fn output_of(mut command: Command) -> Option<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let deadline = Instant::now() + TIMEOUT;
    // What these programs print fits into a pipe.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            _ => {
                // It fails only if the program has just ended.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    };
    let output = child.wait_with_output().ok()?;
    status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

fn processors() -> Finding {
    let name = "processors";
    let usable = available_parallelism().map_or(1, NonZero::get);
    let online =
        read("/proc/cpuinfo").map_or(0, |text| text.lines().filter(|line| line.starts_with("processor")).count());
    match usable < online {
        true => Finding::note(name, format!("{usable} of {online}"), "this process may not use the others"),
        false => Finding::fine(name, usable.to_string()),
    }
}

fn memory() -> Finding {
    let name = "memory";
    let text = read("/proc/meminfo").unwrap_or_default();
    let of = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok());
    let [total, available] = ["MemTotal:", "MemAvailable:"].map(|key| of(key).map(|kib: f64| kib * 1024.0 / GIB));
    let (Some(total), Some(available)) = (total, available) else { return Finding::fine(name, "unknown") };
    let found = format!("{available:.1} of {total:.1} GiB are free");
    match read("/sys/fs/cgroup/memory.max").and_then(|limit| limit.parse::<f64>().ok()) {
        Some(limit) if limit / GIB < total => {
            Finding::note(name, found, format!("the control group of this process may use {:.1} GiB", limit / GIB))
        }
        _ => Finding::fine(name, found),
    }
}

fn gpus() -> Finding {
    let name = "GPUs";
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=name", "--format=csv,noheader"]);
    let drivers = || {
        let folders = fs::read_dir("/proc/driver/nvidia/gpus").ok()?.flatten();
        let model =
            |text: String| text.lines().find_map(|line| line.strip_prefix("Model:").map(|name| name.trim().into()));
        Some(folders.filter_map(|folder| model(read(folder.path().join("information"))?)).collect::<Vec<String>>())
    };
    let named = output_of(command).map(|text| text.lines().map(ToString::to_string).collect());
    let found = named.or_else(drivers).unwrap_or_default();
    Finding::fine(name, if found.is_empty() { "no NVIDIA GPU found".into() } else { found.join(", ") })
}

fn shared_memory() -> Finding {
    let name = "shared memory";
    let made = memfd_create("paceline-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).and_then(|file| {
        ftruncate(&file, 1 << 20)?;
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK)
    });
    match made {
        Ok(()) => Finding::fine(name, "works"),
        Err(error) => Finding::wrong(
            name,
            format!("can't be made: {error}"),
            "use --transport tcp, or --listen HOST:PORT, and allow the system call memfd_create",
        ),
    }
}

fn loader_memory() -> Finding {
    let name = "/dev/shm";
    let Ok(found) = statvfs("/dev/shm") else {
        return Finding::note(name, "not there", "PyTorch's loaders with worker processes need it");
    };
    let [total, free] = [found.f_blocks, found.f_bavail].map(|blocks| (blocks * found.f_frsize) as f64 / GIB);
    let text = format!("{free:.2} of {total:.2} GiB are free");
    match free < 1.0 {
        true => Finding::note(
            name,
            text,
            "PyTorch's loaders with worker processes may need more, e.g. docker run --shm-size=8g",
        ),
        false => Finding::fine(name, text),
    }
}

fn limit(resource: Resource) -> (Option<u64>, String) {
    let limit = getrlimit(resource).maximum;
    (limit, limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string()))
}

/// A server raises the limit to the maximum.
fn open_files() -> Finding {
    let name = "open files";
    let (files, text) = limit(Resource::Nofile);
    let found = format!("at most {text}");
    match files {
        Some(files) if files < 64 => Finding::wrong(name, found, "raise it: ulimit -Hn 4096"),
        Some(files) if files < 1024 => {
            Finding::note(name, found, "a server needs one per worker and a few more: ulimit -Hn 4096")
        }
        _ => Finding::fine(name, found),
    }
}

fn locked_memory() -> Finding {
    let (_, text) = limit(Resource::Memlock);
    let unit = if text == "unlimited" { "" } else { " bytes" };
    Finding::fine("locked memory", format!("at most {text}{unit}"))
}

fn clock() -> Finding {
    let name = "clock";
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.unwrap_or_else(|| "unknown source".into());
    let is_synchronized = Path::new("/run/systemd/timesync/synchronized").exists();
    let synchronized = if is_synchronized { ", synchronized by systemd-timesyncd" } else { "" };
    let found = format!("{source}{synchronized}");
    // Both need a system call for every look at the clock.
    match source.as_str() {
        "acpi_pm" | "hpet" | "jiffies" => {
            Finding::note(name, found, "it is slow to read, which costs every task some time")
        }
        _ => Finding::fine(name, found),
    }
}
