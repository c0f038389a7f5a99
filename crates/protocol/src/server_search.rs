//! Where a worker finds its server.

use std::collections::VecDeque;

/// The addresses where a worker may find its server, and the newest lease under which it has joined one.
#[derive(Debug, Clone)]
pub struct ServerSearch<A> {
    /// In the order in which they are tried.
    addresses: VecDeque<A>,
    epoch: u64,
}

impl<A> ServerSearch<A> {
    /// A server at the first of these addresses, or at that of a standby.
    pub fn new(first: A, standbys: impl IntoIterator<Item = A>) -> Self {
        ServerSearch { addresses: std::iter::once(first).chain(standbys).collect(), epoch: 0 }
    }

    /// The addresses in the order in which they are tried.
    pub fn addresses(&self) -> impl Iterator<Item = &A> {
        self.addresses.iter()
    }

    /// The address that is tried first.
    pub fn first(&self) -> &A {
        &self.addresses[0]
    }

    /// A server at the first address that accepts connections gave no answer. The next one is tried first from now on.
    pub fn pass_on(&mut self) {
        self.addresses.rotate_left(1);
    }

    /// A server welcomes the worker under the lease `epoch`. Returns whether the worker may join it: if it has joined a later
    /// one, that has taken over, and the next address is tried first from now on.
    pub fn on_welcome(&mut self, epoch: u64) -> bool {
        if epoch < self.epoch {
            self.pass_on();
            return false;
        }
        self.epoch = epoch;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_never_goes_back_to_an_older_server() {
        let mut search = ServerSearch::new("first", ["standby"]);
        assert!(search.on_welcome(1) && search.on_welcome(2) && search.on_welcome(2));
        assert_eq!(search.first(), &"first");
        assert!(!search.on_welcome(1));
        assert_eq!(search.addresses().collect::<Vec<_>>(), [&"standby", &"first"]);
    }
}
