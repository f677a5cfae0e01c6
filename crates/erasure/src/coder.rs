//! The code itself, block by block.

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};
use stdchk_object::{Code, Error, Result};

/// What the library refuses is a mistake of this crate, which gives it only what fits; it is an error all the same.
fn refused(error: reed_solomon_simd::Error) -> Error {
    Error::corrupt(format!("the erasure code does not fit: {error}"))
}

/// Adds parity to rows of blocks.
pub struct Parity {
    code: Code,
    encoder: ReedSolomonEncoder,
    len: usize,
}

impl Parity {
    /// For blocks of `len` bytes at first.
    pub fn new(code: Code, len: usize) -> Result<Parity> {
        let encoder =
            ReedSolomonEncoder::new(code.data().into(), code.parity().into(), len).map_err(refused)?;
        Ok(Parity { code, encoder, len })
    }

    /// Calls `each` with the parity blocks of one row, in order.
    pub fn of<'a>(
        &mut self,
        row: impl IntoIterator<Item = &'a [u8]>,
        len: usize,
        mut each: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        if len != self.len {
            let (data, parity) = (self.code.data().into(), self.code.parity().into());
            self.encoder.reset(data, parity, len).map_err(refused)?;
            self.len = len;
        }
        row.into_iter().try_for_each(|block| self.encoder.add_original_shard(block)).map_err(refused)?;
        let coded = self.encoder.encode().map_err(refused)?;
        coded.recovery_iter().enumerate().for_each(|(at, block)| each(at, block));
        Ok(())
    }
}

/// The block of data `wanted` of a row, from any K other blocks of it, each with its place among all shards.
pub fn restore(
    code: Code,
    row: &[(u8, &[u8])],
    wanted: &[u8],
    mut each: impl FnMut(u8, &[u8]),
) -> Result<()> {
    let len = row.first().map_or(0, |(_, block)| block.len());
    let mut decoder =
        ReedSolomonDecoder::new(code.data().into(), code.parity().into(), len).map_err(refused)?;
    for &(index, block) in row {
        match index.checked_sub(code.data()) {
            None => decoder.add_original_shard(index.into(), block),
            Some(parity) => decoder.add_recovery_shard(parity.into(), block),
        }
        .map_err(refused)?;
    }
    let restored = decoder.decode().map_err(refused)?;
    for &index in wanted {
        let block = restored.restored_original(index.into());
        each(index, block.ok_or_else(|| Error::corrupt("the erasure code gave nothing back"))?);
    }
    Ok(())
}
