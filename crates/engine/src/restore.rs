//! Bringing blobs back: leaves in parallel, each read, verified and handed on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use stdchk_object::Result;
use stdchk_object::tree::{Blob, Leaf, Piece};

use crate::buffers::{Buffer, Buffers};
use crate::vault::{LeafAt, Roots, Scratch, Vault, locked};
use crate::workers::{Answer, Workers};

/// Takes the bytes of a blob, in any order and from several threads at once. What is never written is zeros.
pub trait Sink: Send + Sync {
    /// Takes bytes at an offset.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// Leaves that may be under way at once, for each worker.
const AHEAD: usize = 2;
/// Leaves that may be under way at once take no more of the budget than this part of it.
const MEMORY_PART: usize = 4;

/// Bytes of a blob that lie one after the other.
#[derive(Clone, Copy, Debug)]
pub enum Stretch<'a> {
    /// These.
    Data(&'a [u8]),
    /// So many zeros.
    Zeros(u64),
}

/// A blob and what is needed to read it.
pub struct Reader<'a> {
    /// Where it lies.
    pub vault: &'a Arc<Vault>,
    /// What its part refers to.
    pub roots: &'a Arc<Roots>,
    /// The blob.
    pub blob: &'a Blob,
    /// Who reads it.
    pub workers: &'a Workers,
    /// The budget in bytes.
    pub memory: usize,
}

impl Reader<'_> {
    /// Reads the blob into `sink`. `progress` is told of bytes that are done.
    pub fn restore(&self, sink: &Arc<dyn Sink>, progress: &dyn Fn(u64)) -> Result<()> {
        let sink = sink.clone();
        let job = move |leaf: &Leaf, start, buffer: Buffer| write_data(leaf, start, &buffer, &*sink);
        self.leaves(job, &mut |_, len| {
            progress(len);
            Ok(())
        })
    }

    /// Calls `each` with the blob's bytes, in order.
    pub fn stream(&self, each: &mut dyn FnMut(Stretch) -> Result<()>) -> Result<()> {
        let job = |leaf: &Leaf, _, mut buffer: Buffer| {
            let mut at = 0;
            for piece in &leaf.pieces {
                let end = at + piece.bytes() as usize;
                if matches!(piece, Piece::Hole(_)) {
                    buffer[at..end].fill(0);
                }
                at = end;
            }
            Ok(buffer)
        };
        self.leaves(job, &mut |buffer, len| match buffer {
            Some(buffer) => each(Stretch::Data(&buffer)),
            None => each(Stretch::Zeros(len)),
        })
    }

    /// Reads all leaves; the workers do `job` with each one's bytes, of which those of holes are undefined. `done` gets
    /// the results in the order of the blob with how many bytes each stands for, and `None` for holes.
    fn leaves<T: Send + 'static>(
        &self,
        job: impl Fn(&Leaf, u64, Buffer) -> Result<T> + Send + Sync + 'static,
        done: &mut dyn FnMut(Option<T>, u64) -> Result<()>,
    ) -> Result<()> {
        let fitting = self.memory / MEMORY_PART / self.blob.leaf_bytes() as usize;
        let limit = (self.workers.count() * AHEAD).min(fitting).max(1);
        let buffers = Buffers::new(limit, self.blob.leaf_bytes() as usize);
        let scratches = Arc::new(Mutex::new(Vec::<Scratch>::new()));
        let job = Arc::new(job);
        let mut under_way: VecDeque<(Option<Answer<T>>, u64)> = VecDeque::new();
        let walked = self.vault.walk(self.roots, self.blob, 0..self.blob.len, &mut |start, at, len| {
            if under_way.len() >= limit
                && let Some((answer, len)) = under_way.pop_front()
            {
                done(answer.map(Answer::wait).transpose()?, len)?;
            }
            let answer = (at != LeafAt::Hole).then(|| {
                let (vault, roots, blob) = (self.vault.clone(), self.roots.clone(), self.blob.clone());
                let (job, buffers, scratches) = (job.clone(), buffers.clone(), scratches.clone());
                self.workers.ask(move |_| {
                    let leaf = vault.leaf(&roots, &blob, &at, len)?;
                    let mut buffer = buffers.take();
                    buffer.set_len(leaf.bytes() as usize);
                    let mut scratch = locked(&scratches).pop().unwrap_or_default();
                    vault.read_leaf(&roots, &leaf, &mut buffer, &mut scratch)?;
                    locked(&scratches).push(scratch);
                    job(&leaf, start, buffer)
                })
            });
            under_way.push_back((answer, len));
            Ok(())
        });
        // Whatever happened, nothing is left running that still writes into a sink.
        let mut result = walked;
        for (answer, len) in under_way {
            let answer = answer.map(Answer::wait).transpose();
            result = result.and(answer).and_then(|answer| done(answer, len));
        }
        result
    }
}

fn write_data(leaf: &Leaf, start: u64, buffer: &[u8], sink: &dyn Sink) -> Result<()> {
    let (mut at, mut from) = (0usize, 0usize);
    for piece in &leaf.pieces {
        let end = at + piece.bytes() as usize;
        if matches!(piece, Piece::Hole(_)) {
            if at > from {
                sink.write_at(start + from as u64, &buffer[from..at])?;
            }
            from = end;
        }
        at = end;
    }
    if at > from { sink.write_at(start + from as u64, &buffer[from..at]) } else { Ok(()) }
}
