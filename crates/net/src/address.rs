//! The address of a server.

use std::fmt;
use std::net::ToSocketAddrs;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The port of an address without one.
pub const DEFAULT_PORT: u16 = 7077;

const LOCAL: &str = "local:";

/// The longest name of a local address, in bytes. It fits the address of a Unix socket.
const NAME_LIMIT: usize = 100;

/// An address to listen on or to join. It also selects the transport.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// `HOST:PORT` or `HOST`: TCP, for workers on any machine.
    Tcp {
        /// A host name or an IP address.
        host: String,
        /// The port; 0 lets the system choose a free one for a server.
        port: u16,
    },
    /// `local:NAME`: shared memory, for workers of the same user on the same host. The name is that of a Unix socket in
    /// the abstract namespace: there is no file, and the name is free again when the server ends.
    Local {
        /// The name.
        name: String,
    },
}

impl Address {
    /// Whether only this machine can reach the address.
    pub fn is_loopback(&self) -> bool {
        match self {
            Address::Local { .. } => true,
            Address::Tcp { host, port } => (host.as_str(), *port)
                .to_socket_addrs()
                .is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback())),
        }
    }
}

/// A text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{text}' is not an address: expected HOST:PORT, HOST (port {DEFAULT_PORT}) or local:NAME (1 to {NAME_LIMIT} bytes)"
)]
pub struct AddressError {
    /// The text.
    pub text: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError { text: text.into() };
        if let Some(name) = text.strip_prefix(LOCAL) {
            let allowed = (1..=NAME_LIMIT).contains(&name.len());
            return if allowed { Ok(Address::Local { name: name.into() }) } else { Err(error()) };
        }
        // A colon in brackets, or one of several without brackets, is part of an IPv6 address.
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, port.parse().map_err(|_| error())?)
            }
            _ => (text, DEFAULT_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(error());
        }
        Ok(Address::Tcp { host: host.into(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Local { name } => write!(f, "{LOCAL}{name}"),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;
    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_through_text() {
        for text in ["10.0.0.1:80", "node-7:7077", "[::1]:90", "local:paceline-7"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("node".parse::<Address>().unwrap().to_string(), "node:7077");
        assert_eq!("::1".parse::<Address>().unwrap().to_string(), "[::1]:7077");
    }

    #[test]
    fn loopback_addresses_are_recognized() {
        let is_loopback = |text: &str| text.parse::<Address>().unwrap().is_loopback();
        assert!(["127.0.0.1:0", "[::1]:7", "local:x"].into_iter().all(is_loopback));
        assert!(!["0.0.0.0:0", "10.0.0.1", "[::]:7"].into_iter().any(is_loopback));
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for text in ["", ":80", "host:port", "host:70000", "local:", "a b:3"] {
            assert!(
                text.parse::<Address>().unwrap_err().to_string().starts_with(&format!("'{text}' is not an address"))
            );
        }
    }
}
