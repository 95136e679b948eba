//! `H = U D U^T` with U unit upper triangular: the order in which rounding errors are fed on.

use faer::linalg::solvers::Llt;
use faer::{Mat, Side};

/// Growths of the damping that are tried before a factorisation is given up.
const ATTEMPTS: u32 = 6;

/// A factorised Hessian.
#[derive(Debug, Clone)]
pub(crate) struct Factor {
    dim: usize,
    /// `[dim, dim]` row-major; only elements right of the diagonal are read.
    upper: Vec<f32>,
    /// D, `[dim]`: what is left of each channel's power once the later ones are known.
    pub diagonal: Vec<f64>,
    /// Damping that was needed, as a fraction of the mean diagonal.
    pub damping: f64,
    /// Channels that no calibration token excited.
    pub dead: usize,
}

/// Why a Hessian could not be factorised.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FactorError {
    #[error("element {index} of the Hessian's diagonal is {value}")]
    NonFinite { index: usize, value: f64 },
    #[error(
        "the Hessian of dimension {dim} is not positive definite at pivot {pivot}, even with damping {damping:e} (diagonal from {smallest:e} to {largest:e})"
    )]
    Indefinite { dim: usize, pivot: usize, damping: f64, smallest: f64, largest: f64 },
}

impl Factor {
    /// Factorises `hessian`, `[dim, dim]` symmetric, after adding `damping` times its mean diagonal
    /// to the diagonal. Ten times the damping is tried while a pivot is not positive. A Hessian that
    /// is zero gives no feedback.
    pub fn new(hessian: &[f64], dim: usize, damping: f64) -> Result<Self, FactorError> {
        let diagonal: Vec<f64> = (0..dim).map(|i| hessian[i * dim + i]).collect();
        if let Some(index) = diagonal.iter().position(|d| !d.is_finite()) {
            return Err(FactorError::NonFinite { index, value: diagonal[index] });
        }
        let dead = diagonal.iter().filter(|d| **d <= 0.0).count();
        if dead == dim {
            let (upper, diagonal) = (vec![0.0; dim * dim], vec![0.0; dim]);
            return Ok(Self { dim, upper, diagonal, damping: 0.0, dead });
        }
        let mean = diagonal.iter().sum::<f64>() / (dim - dead) as f64;
        let mut tried = damping;
        let mut pivot = 0;
        for _ in 0..ATTEMPTS {
            match reversed(hessian, dim, tried * mean).llt(Side::Lower) {
                Ok(llt) => {
                    let diagonal =
                        (0..dim).map(|k| llt.L()[(dim - 1 - k, dim - 1 - k)].powi(2)).collect();
                    let upper = unit_upper(&llt, dim);
                    return Ok(Self { dim, upper, diagonal, damping: tried, dead });
                }
                Err(faer::linalg::cholesky::llt::factor::LltError::NonPositivePivot { index }) => {
                    pivot = dim - 1 - index;
                }
            }
            tried = (tried * 10.0).max(1e-6);
        }
        let largest = diagonal.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let smallest = diagonal.iter().copied().fold(f64::INFINITY, f64::min);
        Err(FactorError::Indefinite { dim, pivot, damping: tried / 10.0, smallest, largest })
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    /// U from element (row, column) on, with `dim` elements from one row to the next.
    pub fn panel(&self, row: usize, column: usize) -> &[f32] {
        &self.upper[row * self.dim + column..]
    }
}

/// The damped matrix with rows and columns in reverse, so that its lower factor is U reversed.
fn reversed(hessian: &[f64], dim: usize, added: f64) -> Mat<f64> {
    Mat::from_fn(dim, dim, |i, j| {
        let element = hessian[(dim - 1 - i) * dim + (dim - 1 - j)];
        if i == j { element + added } else { element }
    })
}

fn unit_upper(llt: &Llt<f64>, dim: usize) -> Vec<f32> {
    let lower = llt.L();
    let mut upper = vec![0.0; dim * dim];
    for j in 0..dim {
        for k in j + 1..dim {
            let (row, column) = (dim - 1 - j, dim - 1 - k);
            upper[j * dim + k] = (lower[(row, column)] / lower[(column, column)]) as f32;
        }
    }
    upper
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `A A^T` of seeded A, `[dim, dim]`: positive definite, with correlated channels.
    pub(crate) fn hessian(dim: usize) -> Vec<f64> {
        let a = |i: usize, j: usize| ((i * 31 + j * 17) % 23) as f64 / 23.0 + f64::from(i == j);
        let element = |i: usize, j: usize| (0..dim).map(|k| a(i, k) * a(j, k)).sum::<f64>();
        (0..dim * dim).map(|n| element(n / dim, n % dim)).collect()
    }

    #[test]
    fn multiplies_back_to_the_hessian() {
        let dim = 12;
        let h = hessian(dim);
        let factor = Factor::new(&h, dim, 0.0).unwrap();
        let unit = |i: usize, j: usize| match i.cmp(&j) {
            std::cmp::Ordering::Less => f64::from(factor.panel(i, j)[0]),
            std::cmp::Ordering::Equal => 1.0,
            std::cmp::Ordering::Greater => 0.0,
        };
        // D from the last column on: H_kk = D_k + sum over j > k of U_kj^2 D_j.
        let mut d = vec![0.0; dim];
        for k in (0..dim).rev() {
            let later: f64 = (k + 1..dim).map(|j| unit(k, j).powi(2) * d[j]).sum();
            d[k] = h[k * dim + k] - later;
            assert!(d[k] > 0.0 && (d[k] / factor.diagonal[k] - 1.0).abs() < 1e-5);
        }
        for i in 0..dim {
            for j in 0..dim {
                let product: f64 = (0..dim).map(|k| unit(i, k) * d[k] * unit(j, k)).sum();
                assert!((product - h[i * dim + j]).abs() < 1e-4 * h[i * dim + i], "{i} {j}");
            }
        }
    }

    #[test]
    fn damping_grows_until_the_factor_exists() {
        // Rank one: no factor without damping.
        let h: Vec<f64> = (0..64).map(|n| ((n / 8 + 1) * (n % 8 + 1)) as f64).collect();
        let factor = Factor::new(&h, 8, 0.0).unwrap();
        assert!(factor.damping > 0.0 && factor.damping < 1e-3, "{}", factor.damping);
        assert_eq!(Factor::new(&h, 8, 0.01).unwrap().damping, 0.01);
    }

    #[test]
    fn unseen_inputs_give_no_feedback() {
        let factor = Factor::new(&[0.0; 16], 4, 0.01).unwrap();
        assert_eq!(factor.dead, 4);
        assert!(factor.panel(0, 0).iter().all(|u| *u == 0.0));
    }

    #[test]
    fn what_no_damping_helps_is_named() {
        let mut h = hessian(4);
        h[5] = f64::NAN;
        let error = Factor::new(&h, 4, 0.01).unwrap_err();
        assert!(matches!(error, FactorError::NonFinite { index: 1, .. }), "{error}");
        let mut h = hessian(4);
        h[1] = 1e9;
        h[4] = 1e9;
        let error = Factor::new(&h, 4, 0.01).unwrap_err();
        assert!(matches!(error, FactorError::Indefinite { dim: 4, .. }), "{error}");
    }
}
