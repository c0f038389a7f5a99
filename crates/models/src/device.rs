//! Devices by name.

use burn::tensor::Device;
use thiserror::Error;

/// Why there is no such device.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// It is no name of a device.
    #[error("unknown device `{found}`: expected cpu, cuda[:N] or wgpu[:N]")]
    Unknown {
        /// What was given.
        found: String,
    },
    /// This build cannot use devices of the kind.
    #[error("device `{found}` needs a build with the feature `{feature}`")]
    NotBuilt {
        /// What was given.
        found: String,
        /// The feature that it takes.
        feature: &'static str,
    },
    /// The machine has too few of the kind.
    #[error("device `{found}` is not there: this machine has {available} of the kind, counted from 0")]
    Absent {
        /// What was given.
        found: String,
        /// How many there are.
        available: usize,
    },
}

/// The device called `cpu`, `cuda`, `cuda:N` (feature `cuda`), `wgpu` or `wgpu:N` (feature `wgpu`).
///
/// On the CPU a replica computes on its caller's thread, and gives the same bits every time and everywhere. GPUs
/// add in an order of their own.
pub fn device(name: &str) -> Result<Device, DeviceError> {
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => (kind, index.parse().ok()),
        None => (name, Some(0)),
    };
    match (kind, index) {
        ("cpu", _) if kind == name => Ok(Device::flex()),
        ("cuda", Some(index)) => cuda(name, index),
        ("wgpu", Some(index)) => wgpu(name, index),
        _ => Err(DeviceError::Unknown { found: name.to_owned() }),
    }
}

#[cfg(feature = "cuda")]
fn cuda(name: &str, index: usize) -> Result<Device, DeviceError> {
    pick(burn::tensor::DeviceType::Cuda, name, index)
}

#[cfg(not(feature = "cuda"))]
fn cuda(name: &str, _index: usize) -> Result<Device, DeviceError> {
    Err(DeviceError::NotBuilt { found: name.to_owned(), feature: "cuda" })
}

#[cfg(feature = "wgpu")]
fn wgpu(name: &str, index: usize) -> Result<Device, DeviceError> {
    pick(burn::tensor::DeviceType::Wgpu, name, index)
}

#[cfg(not(feature = "wgpu"))]
fn wgpu(name: &str, _index: usize) -> Result<Device, DeviceError> {
    Err(DeviceError::NotBuilt { found: name.to_owned(), feature: "wgpu" })
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn pick(kind: burn::tensor::DeviceType, name: &str, index: usize) -> Result<Device, DeviceError> {
    let devices: Vec<Device> = Device::enumerate(kind).into_iter().collect();
    let available = devices.len();
    let device = devices.into_iter().nth(index);
    device.ok_or_else(|| DeviceError::Absent { found: name.to_owned(), available })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_always_there_and_refusals_say_what_is_allowed() {
        assert_eq!(device("cpu"), Ok(Device::flex()));
        for name in ["", "gpu", "cpu:0", "cuda:", "cuda:x", "wgpu:-1"] {
            let error = device(name).unwrap_err().to_string();
            assert_eq!(error, format!("unknown device `{name}`: expected cpu, cuda[:N] or wgpu[:N]"));
        }
        let error = device("cuda:999999").unwrap_err().to_string();
        let expected = if cfg!(feature = "cuda") { "is not there" } else { "needs a build with the feature `cuda`" };
        assert!(error.contains(expected), "{error}");
    }
}
