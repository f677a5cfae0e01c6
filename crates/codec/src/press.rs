//! Compressing and decompressing runs, with contexts and buffers that are kept for the next one.

use stdchk_object::pack::{Codec, Coding};
use stdchk_object::{Error, Result};

use crate::planes;

/// One thread's compressors and scratch space.
pub struct Press {
    zstd: Option<(i32, zstd::bulk::Compressor<'static>)>,
    unzstd: Option<zstd::bulk::Decompressor<'static>>,
    scratch: Vec<u8>,
}

impl Default for Press {
    fn default() -> Self {
        Press::new()
    }
}

impl Press {
    /// Empty; contexts are made when first needed.
    pub fn new() -> Press {
        Press { zstd: None, unzstd: None, scratch: Vec::new() }
    }

    /// Stores `raw` in `coding` (zstd at `level`) into `out`. Says `false`, with `out` meaningless, where the
    /// result would not be shorter than `limit` bytes.
    pub fn compress(
        &mut self,
        coding: Coding,
        level: i32,
        raw: &[u8],
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let limit = limit.min(raw.len());
        out.clear();
        let mut scratch = std::mem::take(&mut self.scratch);
        let input = if coding.planes == 0 {
            raw
        } else {
            planes::split(coding.planes, raw, &mut scratch);
            &scratch
        };
        let fits = match coding.codec {
            Codec::None => {
                out.extend_from_slice(input);
                coding.planes > 0 || input.len() < limit
            }
            Codec::Lz4 => {
                out.resize(lz4_flex::block::get_maximum_output_size(input.len()), 0);
                let length = lz4_flex::block::compress_into(input, out).map_err(failed)?;
                out.truncate(length);
                length < limit
            }
            Codec::Zstd => self.zstd(level, input, limit, out)?,
        };
        self.scratch = scratch;
        Ok(fits)
    }

    fn zstd(&mut self, level: i32, input: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<bool> {
        if self.zstd.as_ref().is_none_or(|(made_for, _)| *made_for != level) {
            self.zstd = Some((level, zstd::bulk::Compressor::new(level).map_err(failed)?));
        }
        let (_, compressor) = self.zstd.as_mut().expect("just made");
        out.reserve(zstd::zstd_safe::compress_bound(input.len()));
        let length = compressor.compress_to_buffer(input, out).map_err(failed)?;
        Ok(length < limit)
    }

    /// Takes `stored` apart into `out`; the result must have exactly `raw_len` bytes.
    pub fn decompress(
        &mut self,
        coding: Coding,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let target = if coding.planes == 0 { &mut *out } else { &mut scratch };
        let done = match coding.codec {
            Codec::None => {
                target.clear();
                target.extend_from_slice(stored);
                Ok(())
            }
            Codec::Lz4 => {
                target.clear();
                target.resize(raw_len, 0);
                let length = lz4_flex::block::decompress_into(stored, target);
                length.map(|length| target.truncate(length)).map_err(failed)
            }
            Codec::Zstd => self.unzstd(stored, raw_len, target),
        };
        if done.is_ok() && coding.planes > 0 {
            planes::join(coding.planes, &scratch, out);
        }
        self.scratch = scratch;
        done?;
        if out.len() == raw_len {
            Ok(())
        } else {
            Err(Error::corrupt("a run decompresses to another length"))
        }
    }

    fn unzstd(&mut self, stored: &[u8], raw_len: usize, out: &mut Vec<u8>) -> Result<()> {
        if self.unzstd.is_none() {
            self.unzstd = Some(zstd::bulk::Decompressor::new().map_err(failed)?);
        }
        out.clear();
        out.reserve_exact(raw_len);
        let decompressor = self.unzstd.as_mut().expect("just made");
        decompressor.decompress_to_buffer(stored, out).map(|_| ()).map_err(failed)
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("a run cannot be compressed or decompressed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn codings() -> impl Strategy<Value = Coding> {
        let codec = prop_oneof![Just(Codec::None), Just(Codec::Lz4), Just(Codec::Zstd)];
        let width = prop_oneof![Just(0u8), Just(2), Just(4), Just(8)];
        (codec, width).prop_map(|(codec, planes)| Coding { codec, planes })
    }

    proptest! {
        #[test]
        fn runs_come_back(coding in codings(), byte in any::<u8>(), noise in proptest::collection::vec(any::<u8>(), 0..300), zeros in 0usize..5000) {
            let mut raw = noise;
            raw.resize(raw.len() + zeros, byte);
            let (mut press, mut stored, mut back) = (Press::new(), Vec::new(), Vec::new());
            if press.compress(coding, 1, &raw, usize::MAX, &mut stored).unwrap() {
                press.decompress(coding, &stored, raw.len(), &mut back).unwrap();
                prop_assert_eq!(&back, &raw);
                prop_assert!(press.decompress(coding, &stored, raw.len() + 1, &mut back).is_err());
            }
        }

        #[test]
        fn hostile_bytes_are_refused(coding in codings(), stored in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut out = Vec::new();
            let _ = Press::new().decompress(coding, &stored, 4096, &mut out);
        }
    }
}
