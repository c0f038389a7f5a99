//! Profiles the devices of LB-BSP's GPU workers before use.

use serde::{Deserialize, Serialize};

use super::{Cost, Profile, ProfilePoint};
use crate::WorkerId;

/// The profiles of all workers' devices. A worker that leaves and rejoins is not measured again.
#[derive(Debug, Serialize, Deserialize)]
pub struct Devices {
    batch: u32,
    devices: Vec<DeviceState>,
}

/// One device's measurements, and its profile when they are complete.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct DeviceState {
    points: Vec<ProfilePoint>,
    profile: Option<Profile>,
}

impl Devices {
    /// Devices without measurements. `batch` is the user's batch size, which is assumed to fit into memory.
    pub fn new(batch: u32) -> Self {
        Devices { batch, devices: Vec::new() }
    }

    fn device_mut(&mut self, worker: WorkerId) -> &mut DeviceState {
        if worker.index() >= self.devices.len() {
            self.devices.resize_with(worker.index() + 1, DeviceState::default);
        }
        &mut self.devices[worker.index()]
    }

    /// Adds a measured batch. It is ignored unless it has the size that [`probe`](Devices::probe) returned.
    pub fn observe(&mut self, worker: WorkerId, point: ProfilePoint) {
        let batch = self.batch;
        let device = self.device_mut(worker);
        if device.profile.is_some() || Profile::next_probe(&device.points, batch) != Some(point.samples) {
            return;
        }
        let memory = point.memory.filter(|memory| memory.is_finite() && (0.0..=1.0).contains(memory));
        // An invalid time counts as almost zero, so that profiling ends.
        let seconds = if point.seconds.is_finite() { point.seconds.max(1e-9) } else { 1e-9 };
        device.points.push(ProfilePoint { seconds, memory, ..point });
        if Profile::next_probe(&device.points, batch).is_none() {
            device.profile =
                Some(Profile::fit(&device.points).unwrap_or_else(|| Profile::rough(&device.points, batch)));
        }
    }

    /// The next size to measure the worker's device with; `None` when profiling is complete.
    pub fn probe(&self, worker: WorkerId) -> Option<u32> {
        match self.devices.get(worker.index()) {
            Some(device) if device.profile.is_some() => None,
            Some(device) => Profile::next_probe(&device.points, self.batch),
            None => Profile::next_probe(&[], self.batch),
        }
    }

    /// The cost of the worker's samples without communication; `None` while its device is being measured.
    pub fn cost(&self, worker: WorkerId) -> Option<Cost> {
        Some(self.devices.get(worker.index())?.profile?.cost())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(1);

    fn measure(devices: &mut Devices, seconds: impl Fn(u32) -> f64) {
        while let Some(samples) = devices.probe(WORKER) {
            assert_eq!(devices.cost(WORKER), None);
            devices.observe(WORKER, ProfilePoint { samples, seconds: seconds(samples), memory: None });
        }
    }

    #[test]
    fn a_device_is_measured_once() {
        let mut devices = Devices::new(64);
        // A stale report of another size is ignored.
        devices.observe(WORKER, ProfilePoint { samples: 64, seconds: 9.0, memory: None });
        measure(&mut devices, |samples| 0.1 + 0.01 * f64::from(samples));
        let cost = devices.cost(WORKER).unwrap();
        assert!((cost.seconds(50) - 0.6).abs() < 1e-9, "{cost:?}");
        devices.observe(WORKER, ProfilePoint { samples: 8, seconds: 9.0, memory: None });
        assert_eq!(devices.cost(WORKER), Some(cost));
    }

    #[test]
    fn invalid_times_end_in_a_usable_cost() {
        for invalid in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            for batch in [1, 64] {
                let mut devices = Devices::new(batch);
                measure(&mut devices, |_| invalid);
                let cost = devices.cost(WORKER).unwrap();
                assert!(cost.per_sample > 0.0 && cost.least <= cost.most && cost.seconds(1) >= 0.0, "{cost:?}");
            }
        }
    }
}
