//! A bucket of an object store that speaks S3 as a place for packs and small objects, under the names that a directory has (`docs/FORMAT.md`): a
//! repository that was copied from one to the other works.
//!
//! Names are made with conditional puts (`If-None-Match: *`), so of several that create the same one exactly one does; whatever was answered with
//! success is durable. Credentials, region and endpoint come from the environment, as for the AWS command line (`AWS_ACCESS_KEY_ID`,
//! `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`).
#![forbid(unsafe_code)]

mod bucket;
mod objects;
mod packs;

pub use bucket::S3Store;
