//! Reading ahead of time.

use crate::checkpoint::Source;
use anyhow::{Context, Result};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

/// A tensor's name and a byte range of it.
pub type Piece = (String, Range<u64>);

/// Pieces that are read ahead of time.
pub const AHEAD: usize = 2;

/// A thread that reads pieces in a given order, and the way that buffers take: full ones come from it, empty ones go
/// back.
pub struct Ahead {
    full: Option<Receiver<Result<Vec<u8>>>>,
    empty: Sender<Vec<u8>>,
    /// What is still to come, the next one first.
    expected: VecDeque<Piece>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    pub fn start(source: &Arc<dyn Source>, expected: VecDeque<Piece>) -> Self {
        let (give, full) = sync_channel(AHEAD);
        let (empty, get) = channel::<Vec<u8>>();
        for _ in 0..=AHEAD {
            // The receiver lives in the thread that starts below.
            let _ = empty.send(Vec::new());
        }
        let (source, order) = (Arc::clone(source), expected.clone());
        let thread = std::thread::spawn(move || {
            for (name, range) in order {
                let Ok(mut buffer) = get.recv() else { return };
                let read = source.tensors().get(&name).context("a scheduled tensor exists").and_then(|info| {
                    source.read_into(info, range, &mut buffer)?;
                    Ok(buffer)
                });
                if give.send(read).is_err() {
                    return;
                }
            }
        });
        Self { full: Some(full), empty, expected, thread: Some(thread) }
    }

    pub fn comes_next(&self, name: &str, range: &Range<u64>) -> bool {
        self.expected.front().is_some_and(|(n, r)| n == name && r == range)
    }

    pub fn take(&mut self) -> Result<Vec<u8>> {
        self.expected.pop_front();
        let full = self.full.as_ref().context("the reading thread is there as long as this")?;
        full.recv().context("the reading thread has ended early")?
    }

    pub fn give_back(&self, buffer: Vec<u8>) {
        // After its last piece the thread is gone and needs no buffer.
        let _ = self.empty.send(buffer);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // Closing the channel ends the thread, at the latest when it has read its present piece.
        drop(self.full.take());
        let (closed, _) = channel();
        drop(std::mem::replace(&mut self.empty, closed));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
