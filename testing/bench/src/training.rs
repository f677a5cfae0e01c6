//! A small network that is really trained, for its weights and the state of its optimiser.

use stdchk_kit::Random;

/// Neurons of each layer.
const LAYERS: [usize; 4] = [1024, 2048, 2048, 1024];
const BATCH: usize = 4;
/// Adam (Kingma and Ba 2015, algorithm 1), with its usual constants.
const RATE: f32 = 1e-3;
const BETAS: (f32, f32) = (0.9, 0.999);
const EPSILON: f32 = 1e-8;

/// The weights between two layers with the first and second moments of their gradients, by rows of the outputs.
struct Layer {
    inputs: usize,
    weights: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    gradients: Vec<f32>,
}

impl Layer {
    fn new(inputs: usize, outputs: usize, random: &mut Random) -> Layer {
        let scale = (2.0 / inputs as f32).sqrt();
        let zeros = || vec![0.0; inputs * outputs];
        let weights = (0..inputs * outputs).map(|_| scale * normal(random)).collect();
        Layer { inputs, weights, first: zeros(), second: zeros(), gradients: zeros() }
    }

    fn forward(&self, input: &[f32]) -> Vec<f32> {
        self.weights.chunks_exact(self.inputs).map(|row| dot(row, input)).collect()
    }

    /// Adds to the gradients of the weights; returns the gradient of the input.
    fn backward(&mut self, input: &[f32], slope: &[f32]) -> Vec<f32> {
        let mut down = vec![0.0; self.inputs];
        let rows = self.weights.chunks_exact(self.inputs).zip(self.gradients.chunks_exact_mut(self.inputs));
        for ((row, gradients), &slope) in rows.zip(slope).filter(|(_, slope)| **slope != 0.0) {
            gradients.iter_mut().zip(input).for_each(|(gradient, input)| *gradient += slope * input);
            down.iter_mut().zip(row).for_each(|(down, weight)| *down += slope * weight);
        }
        down
    }

    fn step(&mut self, time: i32, rate: f32) {
        let (beta1, beta2) = BETAS;
        let (bias1, bias2) = (1.0 - beta1.powi(time), 1.0 - beta2.powi(time));
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((weight, gradient), (first, second)) in
            self.weights.iter_mut().zip(&mut self.gradients).zip(moments)
        {
            let mean = *gradient / BATCH as f32;
            *first = beta1 * *first + (1.0 - beta1) * mean;
            *second = beta2 * *second + (1.0 - beta2) * mean * mean;
            *weight -= rate * (*first / bias1) / ((*second / bias2).sqrt() + EPSILON);
            *gradient = 0.0;
        }
    }
}

/// A sum of products in sixteen lanes.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    for (a, b) in a.as_chunks::<16>().0.iter().zip(b.as_chunks::<16>().0) {
        (0..16).for_each(|lane| lanes[lane] += a[lane] * b[lane]);
    }
    lanes.iter().sum()
}

/// Nearly a normal deviate: the sum of twelve uniform ones.
fn normal(random: &mut Random) -> f32 {
    (0..12).map(|_| random.below(1 << 24) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0
}

/// A perceptron that learns what another one, which never changes, makes of random inputs.
pub struct Training {
    layers: Vec<Layer>,
    teacher: Layer,
    random: Random,
    time: i32,
    /// How far a step goes.
    pub rate: f32,
}

impl Training {
    pub fn new(seed: u64) -> Training {
        let mut random = Random::new(seed);
        let pairs = LAYERS.windows(2);
        let layers = pairs.map(|pair| Layer::new(pair[0], pair[1], &mut random)).collect();
        let teacher = Layer::new(LAYERS[0], LAYERS[3], &mut random);
        Training { layers, teacher, random, time: 0, rate: RATE }
    }

    /// Trains for some steps; the mean squared error of the last.
    pub fn run(&mut self, steps: usize) -> f32 {
        let mut error = 0.0;
        for _ in 0..steps {
            error = (0..BATCH).map(|_| self.example()).sum::<f32>() / BATCH as f32;
            self.time += 1;
            self.layers.iter_mut().for_each(|layer| layer.step(self.time, self.rate));
        }
        error
    }

    fn example(&mut self) -> f32 {
        let input: Vec<f32> = (0..LAYERS[0]).map(|_| normal(&mut self.random)).collect();
        let wanted: Vec<f32> = self.teacher.forward(&input).into_iter().map(f32::tanh).collect();
        let last = self.layers.len() - 1;
        let mut signals = vec![input];
        for (i, layer) in self.layers.iter().enumerate() {
            let sums = layer.forward(&signals[i]);
            signals.push(sums.into_iter().map(|sum| if i < last { sum.max(0.0) } else { sum }).collect());
        }
        let mut slope: Vec<f32> =
            signals[last + 1].iter().zip(&wanted).map(|(out, wanted)| out - wanted).collect();
        let error = slope.iter().map(|off| off * off).sum::<f32>() / slope.len() as f32;
        for i in (0..=last).rev() {
            slope = self.layers[i].backward(&signals[i], &slope);
            slope.iter_mut().zip(&signals[i]).for_each(|(slope, out)| {
                if *out <= 0.0 && i > 0 {
                    *slope = 0.0
                }
            });
        }
        error
    }

    /// Weights, then first moments, then second moments, in 32-bit floats.
    pub fn state(&self) -> Vec<u8> {
        let parts: [fn(&Layer) -> &Vec<f32>; 3] =
            [|layer| &layer.weights, |layer| &layer.first, |layer| &layer.second];
        let values = parts.iter().flat_map(|part| self.layers.iter().flat_map(|layer| part(layer).iter()));
        values.flat_map(|value| value.to_le_bytes()).collect()
    }
}
