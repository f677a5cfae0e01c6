//! What the chunks of a run replace, so that differences may be stored instead.

use stdchk_object::PackRef;
use stdchk_object::pack::BaseSpan;

/// The bases of the chunks of a run, in order; empty where there are none at all.
#[derive(Default)]
pub struct Base {
    spans: Vec<BaseSpan>,
    /// Bytes of the chunks of each span.
    bytes: Vec<usize>,
}

impl Base {
    /// Adds the base of the next chunk, which is `len` bytes long.
    pub fn push(&mut self, at: Option<(PackRef, u32)>, len: u32) {
        let goes_on = |span: &BaseSpan| match (span.at, at) {
            (None, None) => true,
            (Some((pack, first)), Some((next, chunk))) => {
                pack == next && first.checked_add(span.count) == Some(chunk)
            }
            _ => false,
        };
        match (self.spans.last_mut().filter(|span| goes_on(span)), self.bytes.last_mut()) {
            (Some(span), Some(bytes)) => {
                span.count += 1;
                *bytes += len as usize;
            }
            _ => {
                self.spans.push(BaseSpan { at, count: 1 });
                self.bytes.push(len as usize);
            }
        }
    }

    pub fn spans(&self) -> &[BaseSpan] {
        &self.spans
    }

    /// Each span with the bytes of its chunks.
    pub fn sized_spans(&self) -> impl Iterator<Item = (BaseSpan, usize)> + '_ {
        self.spans.iter().copied().zip(self.bytes.iter().copied())
    }

    /// Bytes that replace something.
    pub fn bytes(&self) -> usize {
        self.sized_spans().filter(|(span, _)| span.at.is_some()).map(|(_, bytes)| bytes).sum()
    }

    /// The packs of the spans, with the bytes of each.
    pub fn packs(&self) -> impl Iterator<Item = (PackRef, u64)> + '_ {
        self.sized_spans().filter_map(|(span, bytes)| Some((span.at?.0, bytes as u64)))
    }
}
