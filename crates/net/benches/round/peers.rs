//! The same rounds with Gloo and OpenMPI: an all-reduce replaces push, aggregation and pull.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::CONGESTION;
use crate::rounds::{RoundTimes, rounds};

/// Prints one line of milliseconds per round, from rank 0.
const GLOO: &str = "
import os, sys, time, torch, torch.distributed as dist
interface, address, port = sys.argv[1:4]
rank, workers, length, rounds = map(int, sys.argv[4:])
torch.set_num_threads(1)
os.environ.update(MASTER_ADDR=address, MASTER_PORT=port, GLOO_SOCKET_IFNAME=interface)
dist.init_process_group('gloo', rank=rank, world_size=workers)
values = torch.full((length,), 1e-6)
for index in range(rounds + 3):
    began = time.perf_counter()
    dist.all_reduce(values)
    values.mul_(1.0 / workers)
    if rank == 0 and index >= 3:
        print(1e3 * (time.perf_counter() - began))
";

const OPEN_MPI: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int length = atoi(argv[1]), rounds = atoi(argv[2]), rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *values = malloc(sizeof(float) * length), *sum = malloc(sizeof(float) * length);
    for (int i = 0; i < length; i++) values[i] = 1e-6f;
    for (int round = 0; round < rounds + 3; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        MPI_Allreduce(values, sum, length, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0 && round >= 3) printf("%f\n", 1e3 * (MPI_Wtime() - began));
    }
    MPI_Finalize();
}
"#;

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

pub fn has_gloo() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let check = "import torch.distributed as d; assert d.is_available() and d.is_gloo_available()";
    *FOUND.get_or_init(|| succeeds(Command::new("python3").args(["-c", check])))
}

/// The compiled all-reduce, if MPI is installed.
fn mpi_program() -> Option<&'static PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let folder = std::env::temp_dir().join(format!("paceline-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).ok()?;
        let (source, program) = (folder.join("allreduce.c"), folder.join("allreduce"));
        std::fs::write(&source, OPEN_MPI).ok()?;
        let compiled = succeeds(Command::new("mpicc").arg("-O2").arg(&source).arg("-o").arg(&program));
        (compiled && succeeds(Command::new("mpirun").arg("--version"))).then_some(program)
    };
    PROGRAM.get_or_init(compile).as_ref()
}

/// Comparisons that are skipped, or are not fair.
pub fn remarks() -> Vec<String> {
    let gloo = (!has_gloo()).then(|| "skipped Gloo: python3 has no torch.distributed with gloo".into());
    let mpi = mpi_program().is_none().then(|| "skipped OpenMPI: no working mpicc and mpirun".into());
    let system = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    let system = system.trim();
    let unfair = (system != CONGESTION).then(|| {
        format!(
            "unfair to Gloo and OpenMPI over TCP: the system's congestion control is {system}, and they can't select \
             {CONGESTION}"
        )
    });
    [gloo, mpi, unfair].into_iter().flatten().collect()
}

/// The rounds in the lines of a program.
pub fn times(output: &[u8]) -> Option<RoundTimes> {
    let text = std::str::from_utf8(output).ok()?;
    let times: Vec<f64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    (!times.is_empty()).then(|| RoundTimes::of(times))
}

/// The arguments of Python for one of Gloo's processes. That of rank 0 is at this address.
pub fn gloo_arguments(interface: &str, address: SocketAddr, numbers: [usize; 4]) -> Vec<String> {
    let place = [interface.into(), address.ip().to_string(), address.port().to_string()];
    let numbers = numbers.map(|number| number.to_string());
    ["-c".into(), GLOO.into()].into_iter().chain(place).chain(numbers).collect()
}

/// Gloo, through PyTorch, one process per worker.
pub fn gloo(length: usize, workers: usize) -> Option<RoundTimes> {
    if !has_gloo() {
        return None;
    }
    let address = std::net::TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?;
    let start = |rank: usize| {
        let arguments = gloo_arguments("lo", address, [rank, workers, length, rounds(length)]);
        let mut command = Command::new("python3");
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().ok()
    };
    let processes: Vec<_> = (0..workers).map(start).collect::<Option<_>>()?;
    let outputs: Vec<_> = processes.into_iter().filter_map(|process| process.wait_with_output().ok()).collect();
    outputs.iter().find_map(|output| times(&output.stdout))
}

/// OpenMPI's all-reduce, in its shared memory or over TCP.
pub fn open_mpi(length: usize, workers: usize, tcp: bool) -> Option<RoundTimes> {
    let program = mpi_program()?;
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", &workers.to_string()]);
    if tcp {
        command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]);
    }
    let output = command.arg(program).args([length, rounds(length)].map(|number| number.to_string())).output().ok()?;
    times(&output.stdout)
}
