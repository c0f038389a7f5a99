//! A peer for tests, which does what they say. It blocks.

use std::io::{self, Read, Write};

use paceline_protocol::{Codec, PayloadFormat};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{self, FrameHeader};
use crate::frame_reader::{FrameReader, Received};
use crate::shared_memory::Region;
use crate::socket::Traffic;

pub(crate) struct ScriptedPeer<S> {
    pub(crate) stream: S,
    reader: FrameReader,
}

impl<S: Read + Write> ScriptedPeer<S> {
    pub(crate) fn new(stream: S) -> Self {
        ScriptedPeer { stream, reader: FrameReader::new(Traffic::default(), Codec::of_models()) }
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) {
        self.stream.write_all(&frame::encode(message).unwrap()).unwrap();
    }

    /// Sends values as one chunk.
    pub(crate) fn send_chunk(&mut self, values: &[f32]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.stream.write_all(&FrameHeader::of_chunk(PayloadFormat::F32, bytes.len())).unwrap();
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn next<M: DeserializeOwned>(&mut self) -> io::Result<Received<M>> {
        self.reader.next(&mut self.stream)
    }

    /// The next message.
    pub(crate) fn message<M: DeserializeOwned>(&mut self) -> M {
        match self.next().unwrap() {
            Received::Message(message) => message,
            Received::Values(_) => panic!("expected a message, got values"),
            Received::End => panic!("expected a message, got the end of the connection"),
        }
    }

    /// Announces a vector, which is kept.
    pub(crate) fn expect(&mut self, length: usize) {
        self.reader.expect(Some(Region::private(length).unwrap()), length);
    }

    /// The next vector of values, and the messages that arrived before it was complete.
    pub(crate) fn vector<M: DeserializeOwned>(&mut self, length: usize) -> (Region, Vec<M>) {
        self.expect(length);
        self.rest()
    }

    /// The rest of the announced vector.
    pub(crate) fn rest<M: DeserializeOwned>(&mut self) -> (Region, Vec<M>) {
        let mut messages = Vec::new();
        loop {
            match self.next().unwrap() {
                Received::Message(message) => messages.push(message),
                Received::Values(region) => return (region.unwrap(), messages),
                Received::End => panic!("expected values, got the end of the connection"),
            }
        }
    }
}
