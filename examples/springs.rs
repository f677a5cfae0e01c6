//! A small simulation: a ring of masses on springs that harden, stepped by velocity Verlet.
//!
//! `springs --steps N [--every M] [--from FILE]` writes `restart.<step>` every M steps, and a line `step energy` for
//! each. It is deterministic, and goes on from a restart file exactly as if it had never stopped.

use std::fs;
use std::io::Write;

const MASSES: usize = 100_000;
const DT: f64 = 0.005;

struct Ring {
    step: u64,
    x: Vec<f64>,
    v: Vec<f64>,
}

impl Ring {
    fn new() -> Ring {
        let wave = |i: usize| (i as f64 * 0.37).sin() + 0.1 * (i as f64 * 1.7).cos();
        Ring { step: 0, x: (0..MASSES).map(wave).collect(), v: vec![0.0; MASSES] }
    }

    fn force(x: &[f64], i: usize) -> f64 {
        let pull = |d: f64| d + 0.1 * d * d * d;
        let (left, right) = (x[(i + MASSES - 1) % MASSES], x[(i + 1) % MASSES]);
        pull(right - x[i]) - pull(x[i] - left)
    }

    fn kick(&mut self) {
        for i in 0..MASSES {
            self.v[i] += 0.5 * DT * Ring::force(&self.x, i);
        }
    }

    fn advance(&mut self) {
        self.kick();
        for i in 0..MASSES {
            self.x[i] += DT * self.v[i];
        }
        self.kick();
        self.step += 1;
    }

    fn energy(&self) -> f64 {
        let spring = |i: usize| {
            let d = self.x[(i + 1) % MASSES] - self.x[i];
            0.5 * d * d + 0.025 * d * d * d * d
        };
        (0..MASSES).map(|i| 0.5 * self.v[i] * self.v[i] + spring(i)).sum()
    }

    fn write(&self) -> std::io::Result<()> {
        let mut bytes = Vec::with_capacity(8 + MASSES * 16);
        bytes.extend_from_slice(&self.step.to_le_bytes());
        self.x.iter().chain(&self.v).for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
        let name = format!("restart.{}", self.step);
        fs::write(format!("{name}.tmp"), bytes)?;
        fs::rename(format!("{name}.tmp"), name)
    }

    fn read(path: &str) -> Ring {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(bytes.len(), 8 + MASSES * 16, "{path} is no restart file");
        let (step, rest) = bytes.split_at(8);
        let mut values =
            rest.chunks_exact(8).map(|eight| f64::from_le_bytes(eight.try_into().expect("eight bytes")));
        let x = values.by_ref().take(MASSES).collect();
        Ring { step: u64::from_le_bytes(step.try_into().expect("eight bytes")), x, v: values.collect() }
    }
}

fn option(name: &str) -> Option<String> {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.nth(1)
}

fn main() -> std::io::Result<()> {
    let number = |name: &str| option(name).map(|text| text.parse::<u64>().expect("a number"));
    let steps = number("--steps").expect("--steps N");
    let every = number("--every").unwrap_or(steps).max(1);
    let mut ring = option("--from").map_or_else(Ring::new, |path| Ring::read(&path));
    while ring.step < steps {
        ring.advance();
        if ring.step.is_multiple_of(every) || ring.step == steps {
            ring.write()?;
            writeln!(std::io::stdout(), "{} {:.9e}", ring.step, ring.energy())?;
        }
    }
    Ok(())
}
