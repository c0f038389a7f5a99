//! Before a run without a model of its own: the server takes the model of the first worker that has one.

use std::collections::BTreeMap;

use paceline_core::{Span, Time};
use paceline_store::{Layout, OptimizerSpec};
use serde::{Deserialize, Serialize};

use crate::message::{Role, ToServer, ToWorker, Token};
use crate::server::{HANDSHAKE_TIMEOUT, PeerTrust, SessionId, denial};

/// How long a worker may send nothing of its model before another one is asked.
const OFFER_TIMEOUT: Span = Span(10_000_000_000);

/// How a worker trains the model that it offers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfferedTraining {
    /// The optimizer, and groups of parameters with other settings.
    pub optimizer: OptimizerSpec,
    /// The learning rate at the start.
    pub rate: f32,
    /// The samples of a batch.
    pub batch: u32,
    /// The samples of an epoch of all workers, if that is known.
    pub epoch: Option<u64>,
    /// A checksum of what is not trained but must be the same on every worker.
    pub frozen: u32,
}

/// What the server has to do after an input.
#[derive(Debug, Clone, PartialEq)]
pub enum OfferStep {
    /// Send a message.
    Send(SessionId, ToWorker),
    /// Send a last message and close the connection.
    Close(SessionId, ToWorker),
    /// The model is complete. Its values came with the last message.
    Complete(Layout, OfferedTraining),
}

/// A tensor's name and shape.
type NamedShape = (String, Vec<usize>);

/// One connection.
#[derive(Debug)]
struct Candidate {
    trust: PeerTrust,
    /// When it is closed unless something arrives.
    deadline: Time,
}

/// Takes one model. No I/O, no clock; like [`ServerProtocol`](crate::ServerProtocol), it takes what arrives and says what to
/// do.
#[derive(Debug)]
pub struct ModelIntake {
    token: Option<Token>,
    candidates: BTreeMap<SessionId, Candidate>,
    /// The worker that sends its model, and the tensors that it has named: trainable ones, then statistics.
    sender: Option<(SessionId, [Vec<NamedShape>; 2])>,
}

impl ModelIntake {
    /// Workers on a network must have `token`, if there is one.
    pub fn new(token: Option<Token>) -> Self {
        ModelIntake { token, candidates: BTreeMap::new(), sender: None }
    }

    /// A peer has connected.
    pub fn on_connected(&mut self, now: Time, id: SessionId, trust: PeerTrust) {
        self.candidates.insert(id, Candidate { trust, deadline: now + HANDSHAKE_TIMEOUT });
    }

    /// A part of the values has arrived.
    pub fn on_transfer(&mut self, now: Time, id: SessionId) {
        if let Some(candidate) = self.candidates.get_mut(&id) {
            candidate.deadline = now + OFFER_TIMEOUT;
        }
    }

    /// A connection was closed.
    pub fn on_closed(&mut self, id: SessionId) {
        self.candidates.remove(&id);
        self.sender.take_if(|(sender, _)| *sender == id);
    }

    /// When [`on_timer`](ModelIntake::on_timer) is due.
    pub fn next_timer(&self) -> Option<Time> {
        self.candidates.values().map(|candidate| candidate.deadline).min()
    }

    /// Closes the connections whose time is over.
    pub fn on_timer(&mut self, now: Time) -> Vec<OfferStep> {
        let is_over = |(_, candidate): &(&SessionId, &Candidate)| candidate.deadline <= now;
        let over: Vec<SessionId> = self.candidates.iter().filter(is_over).map(|(&id, _)| id).collect();
        over.into_iter().map(|id| self.refuse(id, "nothing arrived in time", true)).collect()
    }

    /// A message has arrived; a [`ToServer::Offer`] with all values.
    pub fn on_message(&mut self, now: Time, id: SessionId, message: ToServer) -> Option<OfferStep> {
        let candidate = self.candidates.get_mut(&id)?;
        let trust = candidate.trust;
        let tensors = self.sender.as_mut().filter(|(sender, _)| *sender == id).map(|(_, tensors)| tensors);
        match (message, tensors) {
            (ToServer::Heartbeat { .. }, _) => None,
            (ToServer::Hello { token, role, .. }, None) => {
                if let Some(reason) = denial(trust, self.token.as_ref(), token.as_ref()) {
                    return Some(self.refuse(id, reason, false));
                }
                if !matches!(role, Role::Worker(_)) {
                    return Some(self.refuse(id, "no worker has brought its model yet", true));
                }
                if self.sender.is_some() {
                    return Some(self.refuse(id, "another worker sends its model", true));
                }
                candidate.deadline = now + OFFER_TIMEOUT;
                self.sender = Some((id, Default::default()));
                Some(OfferStep::Send(id, ToWorker::SendModel))
            }
            (ToServer::Tensor { name, shape, trainable }, Some(tensors)) => {
                candidate.deadline = now + OFFER_TIMEOUT;
                let shape = shape.into_iter().map(|length| length as usize).collect();
                tensors[usize::from(!trainable)].push((name, shape));
                None
            }
            (ToServer::Offer { values, training }, Some(tensors)) => {
                let [trainable, statistics] = std::mem::take(tensors);
                let layout = Layout::checked(trainable, statistics).filter(|layout| layout.len() as u64 == values);
                match layout.filter(|layout| layout.trainable() > 0) {
                    Some(layout) => Some(OfferStep::Complete(layout, training)),
                    None => Some(self.refuse(id, "the values do not fit the tensors of the model", false)),
                }
            }
            (ToServer::Leave { .. }, _) => Some(self.refuse(id, "it leaves", false)),
            _ => Some(self.refuse(id, "expected a hello, then a model", false)),
        }
    }

    /// The model is there: all workers join again.
    pub fn finish(self) -> impl Iterator<Item = OfferStep> {
        let again = ToWorker::Refuse { reason: "the model has arrived".into(), may_rejoin: true };
        self.candidates.into_keys().map(move |id| OfferStep::Close(id, again.clone()))
    }

    fn refuse(&mut self, id: SessionId, reason: &str, may_rejoin: bool) -> OfferStep {
        self.on_closed(id);
        OfferStep::Close(id, ToWorker::Refuse { reason: reason.into(), may_rejoin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_store::OptimizerKind;

    fn hello(token: Option<Token>) -> ToServer {
        ToServer::Hello { role: Role::Worker(None), emulated: None, token }
    }

    fn training() -> OfferedTraining {
        OfferedTraining {
            optimizer: OptimizerKind::Sgd { decay: 0.0 }.into(),
            rate: 0.1,
            batch: 8,
            epoch: None,
            frozen: 0,
        }
    }

    fn tensor(name: &str, shape: &[u64], trainable: bool) -> ToServer {
        ToServer::Tensor { name: name.into(), shape: shape.to_vec(), trainable }
    }

    fn refused(step: Option<OfferStep>) -> (String, bool) {
        match step {
            Some(OfferStep::Close(_, ToWorker::Refuse { reason, may_rejoin })) => (reason, may_rejoin),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_worker_sends_its_model_and_the_others_come_back() {
        let (mut intake, now, ids) = (ModelIntake::new(None), Time::START, [SessionId(0), SessionId(1)]);
        ids.into_iter().for_each(|id| intake.on_connected(now, id, PeerTrust::SameUser));
        assert_eq!(intake.on_message(now, ids[0], hello(None)), Some(OfferStep::Send(ids[0], ToWorker::SendModel)));
        assert_eq!(
            refused(intake.on_message(now, ids[1], hello(None))),
            ("another worker sends its model".into(), true)
        );
        for message in [tensor("w", &[2, 3], true), tensor("mean", &[2], false), tensor("b", &[2], true)] {
            assert_eq!(intake.on_message(now, ids[0], message), None);
        }
        let offer = ToServer::Offer { values: 10, training: training() };
        let Some(OfferStep::Complete(layout, found)) = intake.on_message(now, ids[0], offer) else { panic!() };
        assert_eq!((layout.len(), layout.trainable(), found), (10, 8, training()));
        let names: Vec<&str> = layout.entries().iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["w", "b", "mean"]);
        assert_eq!(intake.finish().count(), 1);
    }

    #[test]
    fn the_next_worker_is_asked_when_the_first_one_is_gone_or_silent() {
        let (mut intake, now) = (ModelIntake::new(None), Time::START);
        for (id, leave) in [(0, true), (1, false), (2, false)].map(|(id, leave)| (SessionId(id), leave)) {
            intake.on_connected(now, id, PeerTrust::SameUser);
            let step = intake.on_message(now, id, hello(None));
            assert_eq!(step, Some(OfferStep::Send(id, ToWorker::SendModel)));
            if leave {
                intake.on_closed(id);
            } else {
                let at = intake.next_timer().unwrap();
                assert_eq!(at, now + OFFER_TIMEOUT);
                assert_eq!(intake.on_timer(at).len(), 1);
            }
        }
    }

    #[test]
    fn a_stranger_or_a_model_that_does_not_fit_is_refused() {
        let (mut intake, now, id) = (ModelIntake::new(Some([7; 32])), Time::START, SessionId(0));
        for token in [None, Some([8; 32])] {
            intake.on_connected(now, id, PeerTrust::Network);
            assert!(refused(intake.on_message(now, id, hello(token))).0.contains("token"));
        }
        for (shape, values) in [(vec![3], 4), (vec![u64::MAX, 2], 4), (vec![0], 0)] {
            intake.on_connected(now, id, PeerTrust::Network);
            intake.on_message(now, id, hello(Some([7; 32])));
            intake.on_message(now, id, tensor("w", &shape, true));
            let step = intake.on_message(now, id, ToServer::Offer { values, training: training() });
            assert_eq!(refused(step).0, "the values do not fit the tensors of the model");
        }
        intake.on_connected(now, id, PeerTrust::SameUser);
        assert_eq!(refused(intake.on_message(now, id, tensor("w", &[1], true))).0, "expected a hello, then a model");
    }
}
