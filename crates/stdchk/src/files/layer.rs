//! What one mount wrote of a file that several write, as a part: the bytes as one member, and which they are as another one.

use std::ops::Range;
use std::sync::Arc;

use stdchk_engine::{PartView, PartWriter, Source, Vault};
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{Error, Locator, Result};

use super::layered::Layered;
use super::opened::{Opened, content_of, member_path};
use super::overlay::Overlay;

/// The member that says which bytes were written.
const RANGES: &str = "ranges";
/// The most that it may have in bytes.
const RANGES_BYTES_MAX: u64 = 1 << 30;

/// What is to be done to a file, in this order: it is cut off, made longer, and written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// What lies behind this is gone.
    pub cut: u64,
    /// It is as long as this at least.
    pub grown: u64,
    /// What was written, in order.
    pub written: Vec<Range<u64>>,
}

impl Default for Layer {
    fn default() -> Layer {
        Layer { cut: u64::MAX, grown: 0, written: Vec::new() }
    }
}

impl Layer {
    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        *self == Layer::default()
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.varint(self.cut);
        out.varint(self.grown);
        out.varint(self.written.len() as u64);
        let mut at = 0;
        for range in &self.written {
            out.varint(range.start - at);
            out.varint(range.end - range.start);
            at = range.end;
        }
        out.into_bytes()
    }

    fn decode(bytes: &[u8]) -> Result<Layer> {
        let mut reader = Reader::new(bytes, "layer of a file");
        let r = &mut reader;
        let (cut, grown) = (r.varint()?, r.varint()?);
        let (mut written, mut at) = (Vec::new(), 0u64);
        for _ in 0..r.count(2)? {
            let (gap, len) = (r.varint()?, r.varint()?);
            let start = at.checked_add(gap);
            let end = start.and_then(|start| start.checked_add(len));
            let (Some(start), Some(end)) = (start, end) else {
                return Err(r.corrupt("a range that ends nowhere"));
            };
            written.push(start..end);
            at = end;
        }
        reader.finish()?;
        Ok(Layer { cut, grown, written })
    }

    /// Adds it to a part, with its bytes.
    pub fn store(&self, part: &mut PartWriter, number: u64, overlay: Overlay) -> Result<()> {
        let len = self.written.last().map_or(0, |range| range.end);
        let new = Layered { len, overlay, ..Layered::default() };
        part.add_file(&member_path(number), Arc::new(new), 0, 0, &|_| {})?;
        part.add_file(RANGES, Arc::new(Plain(self.encode())), 0, 0, &|_| {})
    }

    /// Reads one that was added to a session, with its bytes.
    pub fn open(vault: &Arc<Vault>, head: &Locator, number: u64) -> Result<(Layer, Arc<Opened>)> {
        let part = PartView::open(vault, head)?;
        let ranges = content_of(vault, &part, RANGES)?.map(|content| content.blob);
        let ranges = ranges.filter(|blob| blob.len <= RANGES_BYTES_MAX);
        let blob =
            ranges.ok_or_else(|| Error::corrupt("a layer of a file that does not say what was written"))?;
        let mut bytes = vec![0; blob.len as usize];
        vault.read_range(&part.roots, &blob, 0, &mut bytes)?;
        // The session that it was added to keeps it.
        let opened = Opened::part(vault.clone(), Arc::new(()), part, number)?;
        Ok((Layer::decode(&bytes)?, Arc::new(opened)))
    }

    /// Does to a file what it says, below what was written here and is in no layer yet.
    pub fn put_on(&self, file: &mut Layered, bytes: &Arc<Opened>) {
        let new = file.overlay.held(0..u64::MAX).last().map_or(0, |range| range.end);
        file.base_len = file.base_len.min(self.cut);
        file.patches.remove(self.cut..u64::MAX);
        for range in &self.written {
            file.patches.put(range.clone(), bytes.clone());
        }
        let end = self.written.last().map_or(0, |range| range.end);
        file.len = file.len.min(self.cut).max(self.grown).max(end).max(new);
    }
}

/// Bytes in memory.
pub struct Plain(pub Vec<u8>);

impl Source for Plain {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        buffer.copy_from_slice(&self.0[offset as usize..offset as usize + buffer.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_comes_back_and_what_cannot_be_one_is_refused() {
        let layer = Layer { cut: 7, grown: 1 << 40, written: vec![0..3, 3..9, 1 << 30..(1 << 30) + 1] };
        let bytes = layer.encode();
        assert_eq!(Layer::decode(&bytes).expect("a layer"), layer);
        assert!(Layer::default().is_empty() && !layer.is_empty());
        for len in 0..bytes.len() {
            assert!(Layer::decode(&bytes[..len]).is_err(), "{len}");
        }
        let mut out = Writer::new();
        [0, 0, 1, 5, u64::MAX].into_iter().for_each(|number| out.varint(number));
        assert!(Layer::decode(&out.into_bytes()).is_err());
    }
}
