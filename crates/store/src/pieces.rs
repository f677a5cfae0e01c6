//! Writing pieces that lie anywhere with few system calls.

use std::io::{self, IoSlice, Write};

/// Pieces that one system call takes.
const SLICES_MAX: usize = 1024;

/// Writes all pieces, at most `at_once` bytes with one call.
pub fn write_pieces(to: &mut impl Write, pieces: &[&[u8]], at_once: usize) -> io::Result<()> {
    let small = pieces.iter().flat_map(|piece| piece.chunks(at_once));
    let mut slices: Vec<IoSlice> = small.map(IoSlice::new).collect();
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match to.write_vectored(&rest[..writable(rest, at_once)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How many slices one call may take.
fn writable(slices: &[IoSlice], at_once: usize) -> usize {
    let mut bytes = 0;
    let fits = |slice: &&IoSlice| {
        bytes += slice.len();
        bytes <= at_once
    };
    slices.iter().take(SLICES_MAX).take_while(fits).count().max(1)
}
