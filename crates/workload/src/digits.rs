//! Synthetic handwritten digits: a data set that needs no download.
//!
//! Each digit is a few pen strokes. A random smooth bend of the plane and a random affine map distort the strokes. A
//! pen of random width and darkness draws them on 28 × 28 pixels, and noise is added.

use std::f32::consts::TAU;

use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::dataset::{Dataset, DatasetError, Normalization, Splits};

/// Height and width of an image in pixels.
const SIDE: usize = 28;
const CLASSES: usize = 10;

/// x and y.
type PenPoint = [f32; 2];
/// Points of a smooth curve; x to the right and y down, both from 0 to 1.
type Stroke = &'static [PenPoint];

/// The ways to write each digit.
#[rustfmt::skip]
const GLYPHS: [&[&[Stroke]]; CLASSES] = [
    &[
        &[&[[0.55, 0.04], [0.26, 0.2], [0.16, 0.55], [0.34, 0.93], [0.66, 0.93], [0.84, 0.55], [0.76, 0.2], [0.5, 0.05]]],
    ],
    &[
        &[&[[0.5, 0.04], [0.5, 0.96]]],
        &[&[[0.3, 0.27], [0.54, 0.04]], &[[0.54, 0.04], [0.52, 0.96]]],
        &[&[[0.3, 0.25], [0.52, 0.04]], &[[0.52, 0.04], [0.52, 0.96]], &[[0.28, 0.96], [0.76, 0.96]]],
    ],
    &[
        &[&[[0.2, 0.28], [0.36, 0.07], [0.66, 0.07], [0.78, 0.3], [0.56, 0.6], [0.18, 0.94]], &[[0.18, 0.94], [0.84, 0.92]]],
        &[&[[0.22, 0.25], [0.5, 0.05], [0.76, 0.25], [0.6, 0.6], [0.32, 0.92], [0.18, 0.82], [0.4, 0.76], [0.86, 0.94]]],
    ],
    &[
        &[&[[0.2, 0.14], [0.5, 0.04], [0.76, 0.22], [0.65, 0.42], [0.4, 0.48]],
          &[[0.4, 0.48], [0.76, 0.58], [0.78, 0.8], [0.5, 0.96], [0.18, 0.85]]],
        &[&[[0.2, 0.08], [0.76, 0.06]], &[[0.76, 0.06], [0.44, 0.42]],
          &[[0.44, 0.42], [0.76, 0.55], [0.78, 0.82], [0.5, 0.96], [0.18, 0.86]]],
    ],
    &[
        &[&[[0.3, 0.06], [0.2, 0.5]], &[[0.2, 0.5], [0.5, 0.57], [0.84, 0.52]], &[[0.7, 0.1], [0.64, 0.96]]],
        &[&[[0.64, 0.04], [0.14, 0.64]], &[[0.14, 0.64], [0.88, 0.62]], &[[0.64, 0.04], [0.64, 0.96]]],
    ],
    &[
        &[&[[0.28, 0.07], [0.24, 0.46]], &[[0.24, 0.46], [0.54, 0.37], [0.8, 0.6], [0.72, 0.88], [0.44, 0.97], [0.17, 0.85]],
          &[[0.28, 0.07], [0.8, 0.05]]],
    ],
    &[
        &[&[[0.7, 0.05], [0.4, 0.25], [0.2, 0.62], [0.34, 0.92], [0.64, 0.92], [0.78, 0.72], [0.6, 0.52], [0.36, 0.58], [0.22, 0.74]]],
    ],
    &[
        &[&[[0.18, 0.08], [0.82, 0.07]], &[[0.82, 0.07], [0.54, 0.5], [0.42, 0.96]]],
        &[&[[0.18, 0.08], [0.82, 0.07]], &[[0.82, 0.07], [0.54, 0.5], [0.42, 0.96]], &[[0.34, 0.5], [0.76, 0.48]]],
    ],
    &[
        &[&[[0.74, 0.2], [0.5, 0.04], [0.27, 0.2], [0.38, 0.42], [0.65, 0.58], [0.76, 0.8], [0.5, 0.97], [0.24, 0.8],
            [0.35, 0.58], [0.62, 0.42], [0.74, 0.2]]],
    ],
    &[
        &[&[[0.76, 0.26], [0.52, 0.05], [0.24, 0.26], [0.36, 0.5], [0.62, 0.46], [0.76, 0.26]],
          &[[0.76, 0.26], [0.74, 0.56], [0.6, 0.96]]],
        &[&[[0.76, 0.26], [0.52, 0.05], [0.24, 0.26], [0.36, 0.5], [0.62, 0.46], [0.76, 0.26]],
          &[[0.76, 0.26], [0.76, 0.66], [0.54, 0.96], [0.24, 0.86]]],
    ],
];

/// Draws `train` + `held_out` digits of 28 × 28 pixels in one channel, with all ten classes equally often.
///
/// The same seed gives the same images. Held-out images are drawn independently of training images.
///
/// # Errors
/// [`DatasetError::Empty`] if `train` or `held_out` is 0.
pub fn synthetic_digits(seed: u64, train: usize, held_out: usize) -> Result<Splits, DatasetError> {
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (train_pixels, train_labels) = draw(train, &mut generator);
    let (held_out_pixels, held_out_labels) = draw(held_out, &mut generator);
    let normalization = Normalization::of(&train_pixels);
    let dataset = |pixels, labels| Dataset::new(pixels, labels, [1, SIDE, SIDE], CLASSES, vec![normalization]);
    Splits::new(dataset(train_pixels, train_labels)?, dataset(held_out_pixels, held_out_labels)?)
}

fn draw(samples: usize, generator: &mut Xoshiro256PlusPlus) -> (Vec<u8>, Vec<u8>) {
    let labels: Vec<u8> = (0..samples).map(|sample| (sample % CLASSES) as u8).collect();
    let mut pixels = Vec::with_capacity(samples * SIDE * SIDE);
    for &label in &labels {
        pixels.extend(image(usize::from(label), generator));
    }
    (pixels, labels)
}

fn image(digit: usize, generator: &mut Xoshiro256PlusPlus) -> [u8; SIDE * SIDE] {
    let ways = GLYPHS[digit];
    let strokes = ways[generator.random_range(0..ways.len())];
    let handwriting = Handwriting::random(generator);
    let mut ink = [0.0f32; SIDE * SIDE];
    for stroke in strokes {
        let mut from = handwriting.to_pixels(stroke[0]);
        for point in smooth(stroke) {
            let to = handwriting.to_pixels(point);
            handwriting.line(from, to, &mut ink);
            from = to;
        }
    }
    ink.map(|ink| {
        let noise: f32 = generator.sample(StandardNormal);
        ((ink * handwriting.darkness + noise * handwriting.noise) * 255.0).clamp(0.0, 255.0) as u8
    })
}

/// Points along the Catmull–Rom curve through a stroke, after its first point.
fn smooth(stroke: Stroke) -> impl Iterator<Item = PenPoint> {
    const STEPS: usize = 5;
    let at = move |index: isize| stroke[index.clamp(0, stroke.len() as isize - 1) as usize];
    (1..stroke.len() as isize).flat_map(move |end| {
        let [before, start, stop, after] = [at(end - 2), at(end - 1), at(end), at(end + 1)];
        // A straight stroke needs points in between, too: the plane is bent later.
        (1..=STEPS).map(move |step| {
            let t = step as f32 / STEPS as f32;
            std::array::from_fn(|axis| {
                let [a, b, c, d] = [before[axis], start[axis], stop[axis], after[axis]];
                b + 0.5 * t * (c - a + t * (2.0 * a - 5.0 * b + 4.0 * c - d + t * (3.0 * (b - c) + d - a)))
            })
        })
    })
}

/// The random distortions and the pen of one image.
struct Handwriting {
    /// Two waves per axis that bend the plane: frequency along x and y, phase, amplitude.
    bends: [[[f32; 4]; 2]; 2],
    /// Rows of the affine map from the unit square to pixels, relative to the centre.
    linear: [[f32; 2]; 2],
    centre: PenPoint,
    /// Half the width of the pen in pixels.
    radius: f32,
    /// Ink of a fully covered pixel, 0 to 1.
    darkness: f32,
    /// Standard deviation of the noise of each pixel, on the scale 0 to 1.
    noise: f32,
}

impl Handwriting {
    fn random(generator: &mut Xoshiro256PlusPlus) -> Self {
        let mut between = |low: f32, high: f32| generator.random_range(low..high);
        let bends = std::array::from_fn(|_| {
            std::array::from_fn(|_| [between(-1.0, 1.0), between(-1.0, 1.0), between(0.0, TAU), between(0.0, 0.07)])
        });
        let (sine, cosine) = between(-0.3, 0.3).sin_cos();
        let shear = between(-0.35, 0.35);
        let (width, height) = (between(11.0, 20.0), between(16.0, 22.0));
        let middle = SIDE as f32 / 2.0;
        Handwriting {
            bends,
            linear: [
                [cosine * width, (cosine * shear - sine) * height],
                [sine * width, (sine * shear + cosine) * height],
            ],
            centre: [middle + between(-2.0, 2.0), middle + between(-2.0, 2.0)],
            radius: between(0.7, 1.8),
            darkness: between(0.6, 1.0),
            noise: between(0.0, 0.12),
        }
    }

    /// The position of a glyph point on the image, in pixels.
    fn to_pixels(&self, point: PenPoint) -> PenPoint {
        let bent: PenPoint = std::array::from_fn(|axis| {
            let bend = |&[along_x, along_y, phase, amplitude]: &[f32; 4]| {
                amplitude * (TAU * (along_x * point[0] + along_y * point[1]) + phase).sin()
            };
            point[axis] - 0.5 + self.bends[axis].iter().map(bend).sum::<f32>()
        });
        std::array::from_fn(|axis| self.centre[axis] + self.linear[axis][0] * bent[0] + self.linear[axis][1] * bent[1])
    }

    /// Draws a line. The edge of the pen fades over one pixel.
    fn line(&self, from: PenPoint, to: PenPoint, ink: &mut [f32; SIDE * SIDE]) {
        let reach = self.radius + 0.5;
        let pixels = |axis: usize| {
            let low = (from[axis].min(to[axis]) - reach).floor().max(0.0) as usize;
            let high = (from[axis].max(to[axis]) + reach).ceil().clamp(0.0, SIDE as f32) as usize;
            low..high
        };
        let along = [to[0] - from[0], to[1] - from[1]];
        let length_squared = (along[0] * along[0] + along[1] * along[1]).max(f32::MIN_POSITIVE);
        for row in pixels(1) {
            for column in pixels(0) {
                let offset = [column as f32 + 0.5 - from[0], row as f32 + 0.5 - from[1]];
                let share = ((offset[0] * along[0] + offset[1] * along[1]) / length_squared).clamp(0.0, 1.0);
                let distance = (offset[0] - share * along[0]).hypot(offset[1] - share * along[1]);
                let pixel = &mut ink[row * SIDE + column];
                *pixel = pixel.max((reach - distance).clamp(0.0, 1.0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_the_images_and_classes_are_equally_frequent() {
        let splits = synthetic_digits(7, 100, 20).unwrap();
        let again = synthetic_digits(7, 100, 20).unwrap();
        assert_eq!((splits.train(), splits.held_out()), (again.train(), again.held_out()));
        assert_ne!(splits.train(), synthetic_digits(8, 100, 20).unwrap().train());
        for class in 0..10 {
            assert_eq!(splits.train().labels().iter().filter(|&&label| label == class).count(), 10);
        }
        assert!(synthetic_digits(7, 0, 20).is_err());
    }

    #[test]
    fn every_image_contains_a_digit() {
        let splits = synthetic_digits(1, 500, 10).unwrap();
        for sample in 0..500 {
            let pixels = splits.train().pixels(sample);
            let dark = pixels.iter().filter(|&&pixel| pixel > 127).count();
            assert!((15..300).contains(&dark), "sample {sample}: {dark} dark pixels");
        }
    }
}
