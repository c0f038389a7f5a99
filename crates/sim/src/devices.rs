//! GPU workers: time grows with the batch only where the device is filled, and memory ends it (LB-BSP, section 5.5).

use paceline_core::WorkerId;
use paceline_core::speed::Resources;

/// The batch size that the paper's coefficients are for.
const REFERENCE: f64 = 380.0;

/// How much longer a task takes that does not fit into memory.
const SPILLING: f64 = 10.0;

/// One type of device. Times are shares of what the slowest type takes for a reference batch, communication included.
#[derive(Debug, Clone, Copy)]
struct Device {
    per_sample: f64,
    fixed: f64,
    saturated_at: f64,
    full_at: f64,
}

/// Cluster-C: four g2.2xlarge, two p2.xlarge and two g3.4xlarge, then again. The bounds are published; the lines are
/// such that the published batch sizes come out.
fn device(worker: WorkerId) -> Device {
    match worker.0 % 8 {
        0..=3 => Device { per_sample: 0.00186, fixed: 0.23, saturated_at: 58.0, full_at: 384.0 },
        4..=5 => Device { per_sample: 0.00115, fixed: 0.15, saturated_at: 92.0, full_at: 1184.0 },
        _ => Device { per_sample: 0.000913, fixed: 0.12, saturated_at: 103.0, full_at: 788.0 },
    }
}

/// How long a task of `size` reference batches takes the worker's device, as a share of what the slowest takes for one,
/// and what it uses of the device's memory.
pub(crate) fn task(worker: WorkerId, size: f64) -> (f64, Resources) {
    let device = device(worker);
    let samples = REFERENCE * size;
    let seconds = device.fixed + device.per_sample * samples.max(device.saturated_at);
    let memory = 0.1 + 0.9 * samples / device.full_at;
    let spilling = if memory > 1.0 { SPILLING } else { 1.0 };
    (seconds * spilling, Resources { cpu: 0.0, memory: memory.min(1.0) })
}
