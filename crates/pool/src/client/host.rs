//! Which addresses are this machine's.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Whether a host and a port are of this machine. Nothing is sent.
pub fn is_here(address: &str) -> bool {
    let known = || address.to_socket_addrs().ok().map(|all| all.map(|at| at.ip()).collect::<Vec<_>>());
    let ips = match address.parse::<SocketAddr>() {
        Ok(at) => vec![at.ip()],
        Err(_) => known().unwrap_or_default(),
    };
    ips.into_iter().any(is_ours)
}

/// What is sent to an address of this machine comes from that same address.
fn is_ours(ip: IpAddr) -> bool {
    let any = if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let from = UdpSocket::bind(any).and_then(|socket| {
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    ip.is_loopback() || from.is_ok_and(|from| from.ip() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_not_here() {
        assert!(is_here("127.0.0.1:7117") && is_here("[::1]:7117") && is_here("127.9.9.9:1"));
        // Kept for documentation: nobody has them.
        assert!(!is_here("192.0.2.7:7117") && !is_here("[2001:db8::7]:7117") && !is_here("nonsense"));
    }
}
