//! A warm planner does not allocate. This test has its own file, since the counting allocator is global to the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use paceline_core::barrier::{Planner, PredictedTimes, Progression};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct CountingAllocator;

// SAFETY: every call is passed to the system allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Workers whose phases depend on `round`, so that every plan is different.
fn workers(round: u64) -> Vec<Progression> {
    let phase = |i: u64| (i * 7919 + round * 104_729) % 1300;
    (0..400).map(|i| Progression { next: 5000 + phase(i), interval: 1000 + (i * 6007) % 500 }).collect()
}

/// How many allocations `plan` makes.
fn allocations(plan: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    plan();
    ALLOCATIONS.get() - before
}

#[test]
fn progressions_allocate_once() {
    let mut planner = Planner::new();
    let mut plan = |round| {
        let workers = workers(round);
        allocations(|| _ = planner.plan_progressions(&workers, 60).expect("the workers are valid"))
    };
    assert!(plan(0) > 0, "the first plan fills the buffers");
    for round in 1..50 {
        assert_eq!(plan(round), 0, "round {round}");
    }
}

#[test]
fn matrices_seen_before_allocate_nothing() {
    let mut planner = Planner::new();
    let mut plan = |round| {
        let times = PredictedTimes::from_progressions(&workers(round), 60).expect("the times fit");
        allocations(|| _ = planner.plan(&times))
    };
    assert!((0..10).map(&mut plan).sum::<usize>() > 0, "the first plans fill the buffers");
    assert_eq!((0..10).map(&mut plan).sum::<usize>(), 0);
}
