//! Takes the model that a worker brings, before the run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use paceline_core::Time;
use paceline_protocol::{ModelIntake, OfferStep, SessionId};
use paceline_runtime::OfferedModel;

use super::acceptor::Acceptor;
use super::event_source::{EventSource, ServerInput};
use super::link::Link;
use super::session::{GradientPool, SessionContext};
use super::{Server, ServerError, io_threads};
use crate::keys::Keys;
use crate::socket::Traffic;

/// How long workers may take to disconnect once the model is there.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(2);

impl Server {
    /// Waits for workers that bring a model, and takes that of the first. All of them then join again.
    ///
    /// # Errors
    /// [`ServerError::NoModel`] if the server is stopped first, another one if it can't continue.
    pub fn receive_model(&mut self) -> Result<OfferedModel, ServerError> {
        let context = Arc::new(SessionContext {
            pool: GradientPool::default(),
            traffic: Traffic::default(),
            payload: self.transport.payload,
            shares_memory: false,
            length: None,
            open: AtomicUsize::new(0),
        });
        let (io_threads, io_handles) = io_threads(self.is_over_tcp(), &self.handle).map_err(ServerError::System)?;
        let (listeners, options) = (std::mem::take(&mut self.listeners), std::mem::take(&mut self.tcp_options));
        let event_source = &mut self.event_source;
        let (first, poller) = (self.next_session, event_source.poller());
        let acceptor = Acceptor::new(listeners, options, context.clone(), io_handles, first, poller);
        event_source.acceptor = Some(acceptor.map_err(ServerError::System)?);
        let token = self.transport.keys.as_ref().map(Keys::token);
        let (received, stopped) = thread::scope(|scope| {
            for io_thread in io_threads {
                scope.spawn(|| io_thread.run());
            }
            let mut receiver =
                ModelReceiver { intake: ModelIntake::new(token), links: HashMap::new(), clock: Instant::now() };
            let received = receiver.receive(event_source);
            // Its I/O threads end after the last messages.
            let acceptor = event_source.acceptor.take();
            receiver.finish();
            let stopped = acceptor.map(|acceptor| acceptor.stop(event_source.poller()));
            let deadline = Instant::now() + DISCONNECT_TIMEOUT;
            while context.open.load(Ordering::Relaxed) > 0 && Instant::now() < deadline {
                if event_source.gather(Some(deadline.min(Instant::now() + Duration::from_millis(10)))).is_err() {
                    break;
                }
            }
            (received, stopped)
        });
        if let Some(stopped) = stopped {
            let (listeners, options, next_session) = stopped.map_err(ServerError::System)?;
            (self.listeners, self.tcp_options, self.next_session) = (listeners, options, next_session);
        }
        received
    }
}

/// Carries out what the intake says.
struct ModelReceiver {
    intake: ModelIntake,
    links: HashMap<SessionId, Link>,
    clock: Instant,
}

impl ModelReceiver {
    fn receive(&mut self, event_source: &mut EventSource) -> Result<OfferedModel, ServerError> {
        loop {
            let deadline = self.intake.next_timer().map(|at| self.clock + Duration::from_nanos(at.0));
            for input in event_source.gather(deadline).map_err(ServerError::System)? {
                if let Some(model) = self.handle(input)? {
                    return Ok(model);
                }
            }
            let now = self.now();
            self.intake.on_timer(now).into_iter().for_each(|step| self.carry_out(step));
        }
    }

    fn now(&self) -> Time {
        Time(self.clock.elapsed().as_nanos() as u64)
    }

    fn handle(&mut self, input: ServerInput) -> Result<Option<OfferedModel>, ServerError> {
        let now = self.now();
        match input {
            ServerInput::Connected { session, trust, link, .. } => {
                self.links.insert(session, link);
                self.intake.on_connected(now, session, trust);
            }
            ServerInput::Message { session, message, gradient } => {
                match (self.intake.on_message(now, session, message), gradient) {
                    (Some(OfferStep::Complete(layout, training)), Some(values)) => {
                        return Ok(Some(OfferedModel { layout, initial: values.values().to_vec(), training }));
                    }
                    (Some(step), _) => self.carry_out(step),
                    (None, _) => {}
                }
            }
            ServerInput::Transfer { session } => self.intake.on_transfer(now, session),
            ServerInput::Closed { session, .. } => {
                self.intake.on_closed(session);
                self.links.remove(&session);
            }
            ServerInput::Stop { reason } => return Err(ServerError::NoModel(reason)),
            ServerInput::Failed(error) => return Err(ServerError::System(error)),
            ServerInput::Refused { .. } | ServerInput::Evaluated { .. } | ServerInput::Planned { .. } => {}
        }
        Ok(None)
    }

    fn carry_out(&mut self, step: OfferStep) {
        match step {
            OfferStep::Send(session, message) => {
                self.links.get(&session).into_iter().for_each(|link| link.send(&message))
            }
            OfferStep::Close(session, message) => {
                self.links.remove(&session).into_iter().for_each(|link| link.close(&message));
            }
            // Without values it is not complete; the session never passes on such a message.
            OfferStep::Complete(..) => {}
        }
    }

    /// All workers join again.
    fn finish(mut self) {
        let intake = std::mem::replace(&mut self.intake, ModelIntake::new(None));
        intake.finish().for_each(|step| self.carry_out(step));
    }
}
