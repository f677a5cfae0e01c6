//! What tests are made of: seeded generators, and a file system that can fail, crash and forget.
#![forbid(unsafe_code)]

mod etcd;
pub mod generate;
pub mod hostile;
mod hosts;
mod proxy;
mod s3;
mod sim_fs;

pub use etcd::EtcdCluster;
pub use generate::Random;
pub use hosts::Hosts;
pub use s3::S3Server;
pub use sim_fs::{Advice, Fault, SimFs};
