//! The contracts of stores, kept by a bucket: one in memory, and one of a real server.

use std::sync::Arc;

use object_store::memory::InMemory;
use stdchk_kit::S3Server;
use stdchk_object::Kind;
use stdchk_store::{Objects, Store, conformance};
use stdchk_store_s3::S3Store;

fn in_memory(prefix: &str) -> S3Store {
    S3Store::on(Arc::new(InMemory::new()), prefix, "s3://memory".into(), "test".into()).unwrap()
}

#[test]
fn a_bucket_in_memory_keeps_the_contracts() {
    conformance::store(&in_memory("a/b"));
    conformance::objects(&in_memory(""));
}

#[test]
fn a_bucket_of_a_server_keeps_the_contracts() {
    let server = S3Server::start();
    let open = |prefix: &str| server.store(prefix).unwrap();
    conformance::store(&open("one"));
    conformance::objects(&open("two/deep"));
    let (one, two) = (open("one"), open("two/deep"));
    assert_eq!(Objects::get(&one, "log/1").unwrap(), None, "prefixes are apart");
    let gone = stdchk_object::PackName { session: stdchk_object::SessionId(9), writer: 9, number: 9 };
    assert_eq!(Store::length(&two, gone).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn places_are_told_from_nonsense() {
    for bad in ["s3://", "s3:///x", "http://x", "s3"] {
        assert!(S3Store::open(bad, "test".into()).is_err(), "{bad}");
    }
}
