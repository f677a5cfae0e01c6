//! Every decoder, on bytes that nobody vouches for. The first byte chooses which.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stdchk_kit::hostile::decode_anything(bytes));
