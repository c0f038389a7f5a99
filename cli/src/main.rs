//! The `paceline` command.

use std::process::ExitCode;

// Gradients are allocated in large buffers; this allocator keeps and reuses them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    paceline::main()
}
