//! Writing chunks anew, for compaction and repair: no deduplication, no members, only chunks and where they went.

use std::sync::Arc;

use stdchk_object::pack::ChunkKind;
use stdchk_object::{PackName, PackRef, Result, SessionId};
use stdchk_store::Store;

use super::assembly::{Assembly, SealedPack};
use super::coder::Coder;
use crate::workers::{Answer, Workers};

/// Raw bytes of a pack.
const PACK_BYTES: u64 = 16 << 20;

/// Writes chunks into packs of one session, durably.
pub struct Rewriter {
    store: Arc<dyn Store>,
    coder: Coder,
    io: Workers,
    session: SessionId,
    writer: u32,
    begun: u32,
    open: Option<Assembly>,
    under_way: Option<Answer<SealedPack>>,
    written: Vec<PackRef>,
}

impl Rewriter {
    /// A writer for `session`; `writer` must differ between the session's writers.
    pub fn new(store: Arc<dyn Store>, workers: Arc<Workers>, session: SessionId, writer: u32) -> Rewriter {
        Rewriter {
            store,
            coder: Coder::at_leisure(workers),
            io: Workers::new(1, "stdchk-pack"),
            session,
            writer,
            begun: 0,
            open: None,
            under_way: None,
            written: Vec::new(),
        }
    }

    /// Adds a chunk; where it will lie.
    pub fn push(&mut self, kind: ChunkKind, bytes: Vec<u8>) -> Result<(PackName, u32)> {
        if self.open.as_ref().is_some_and(|open| open.raw_bytes() + bytes.len() as u64 > PACK_BYTES) {
            self.end_pack()?;
        }
        let open = self.open.get_or_insert_with(|| {
            let name = PackName { session: self.session, writer: self.writer, number: self.begun };
            self.begun += 1;
            Assembly::new(name, 0)
        });
        open.push_meta(kind, bytes, &self.coder)
    }

    /// Ends the pack that is being filled, so that what comes next lies in another one.
    pub fn end_pack(&mut self) -> Result<()> {
        self.wait()?;
        if let Some(open) = self.open.take() {
            let closed = open.close(&self.coder);
            let store = self.store.clone();
            self.under_way = Some(self.io.ask_leaving(move |_| closed.write(&*store, true)));
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        if let Some(under_way) = self.under_way.take() {
            self.written.push(under_way.wait()?.pack);
        }
        Ok(())
    }

    /// Writes what is left; all packs so far, durable.
    pub fn flush(&mut self) -> Result<&[PackRef]> {
        self.end_pack()?;
        self.wait()?;
        Ok(&self.written)
    }

    /// Removes what was written, as far as that is possible.
    pub fn abandon(mut self) {
        let _ = self.wait();
        let name = |number| PackName { session: self.session, writer: self.writer, number };
        let names: Vec<PackName> = (0..self.begun).map(name).collect();
        if let Err(error) = self.store.remove(&names) {
            tracing::warn!("packs that are not needed are left for garbage collection: {error}");
        }
    }
}
