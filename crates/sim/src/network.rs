//! How long messages take.

use std::fmt;
use std::str::FromStr;

use paceline_core::{Span, Time};
use paceline_spec::{Spec, SpecError};
use serde::{Deserialize, Serialize};

/// The network between the server and the workers. As text: `latency=0.001,bandwidth=1e9,link=1e8,bytes=1e8`.
///
/// All messages share the server's link, one after another in each direction. Each then takes the link of its worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkSpec {
    /// Seconds from end to end, one way, in addition to the time on the links; default 0.
    pub latency: f64,
    /// Bytes per second of the server's link, each way; default unlimited.
    pub bandwidth: f64,
    /// Bytes per second of a worker's own link, each way; default unlimited.
    pub link: f64,
    /// Bytes of the parameters or of a gradient; default the size of the model.
    pub bytes: Option<u64>,
}

impl FromStr for NetworkSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec = Spec::parse_unnamed("network", text, &["latency", "bandwidth", "link", "bytes"])?;
        let rate = |key| spec.optional(key, "bytes per second, above 0", |&rate: &f64| rate > 0.0);
        let at_least_0 = |value: &f64| value.is_finite() && *value >= 0.0;
        let network = NetworkSpec {
            latency: spec.optional("latency", "seconds, at least 0", at_least_0)?.unwrap_or(0.0),
            bandwidth: rate("bandwidth")?.unwrap_or(f64::INFINITY),
            link: rate("link")?.unwrap_or(f64::INFINITY),
            bytes: spec.optional("bytes", "at least 0", at_least_0)?.map(|bytes: f64| bytes as u64),
        };
        if text.is_empty() {
            return Err(spec.unfit("latency=SECONDS, bandwidth=BYTES_PER_SECOND, link=BYTES_PER_SECOND or bytes=N"));
        }
        Ok(network)
    }
}

impl fmt::Display for NetworkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "latency={},bandwidth={},link={}", self.latency, self.bandwidth, self.link)?;
        self.bytes.map_or(Ok(()), |bytes| write!(f, ",bytes={bytes}"))
    }
}

impl TryFrom<String> for NetworkSpec {
    type Error = SpecError;
    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<NetworkSpec> for String {
    fn from(spec: NetworkSpec) -> String {
        spec.to_string()
    }
}

/// One direction of the server's link. It carries one message at a time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ServerLink {
    free_at: Time,
}

impl ServerLink {
    /// The arrival time of a message of `bytes` that is ready at `now`. The worker's own link is `slowdown` times
    /// slower than usual.
    pub(crate) fn send(&mut self, now: Time, bytes: u64, network: &NetworkSpec, slowdown: f64) -> Time {
        self.free_at = self.free_at.max(now) + Span::from_seconds(bytes as f64 / network.bandwidth);
        self.free_at + Span::from_seconds(bytes as f64 / network.link * slowdown) + Span::from_seconds(network.latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_share_the_servers_link() {
        let network: NetworkSpec = "latency=0.5,bandwidth=10".parse().unwrap();
        let mut link = ServerLink::default();
        let at = |seconds| Time::START + Span::from_seconds(seconds);
        assert_eq!(link.send(at(0.0), 10, &network, 1.0), at(1.5));
        assert_eq!(link.send(at(0.0), 10, &network, 1.0), at(2.5));
        assert_eq!(link.send(at(9.0), 10, &network, 1.0), at(10.5));
        // A worker's own link delays its own messages only.
        let network: NetworkSpec = "bandwidth=10,link=20".parse().unwrap();
        assert_eq!(link.send(at(20.0), 10, &network, 3.0), at(22.5));
        assert_eq!(link.send(at(20.0), 10, &network, 1.0), at(22.5));
    }

    #[test]
    fn malformed_networks_are_refused() {
        for text in ["", "latency", "latency=-1", "bandwidth=0", "speed=3", "latency=NaN", "link=0", "link=1,link=2"] {
            assert!(text.parse::<NetworkSpec>().is_err(), "{text}");
        }
        let error = "bandwidth=0".parse::<NetworkSpec>().unwrap_err().to_string();
        assert_eq!(error, "network: bandwidth=0; expected bytes per second, above 0");
    }
}
