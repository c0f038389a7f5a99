//! Problem (17) as printed, solved by a general solver for quadratic programs.

use clarabel::{
    algebra::CscMatrix,
    solver::{DefaultSettings, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus},
};

/// The constraints of (17) as pairs `(smaller, larger)` of cells; cell (h, k) is at (h − 1) · n + k − 1.
pub fn constraints(workers: usize) -> Vec<(usize, usize)> {
    let cell = |h: usize, k: usize| (h - 1) * workers + k - 1;
    let mut pairs = Vec::new();
    for h in 1..=workers {
        for k in 1..workers {
            pairs.push((cell(h, k), cell(h, k + 1)));
            pairs.push((cell(k + 1, h), cell(k, h)));
        }
    }
    pairs.extend((1..workers).map(|k| (cell(k, k), cell(k + 1, k + 1))));
    pairs
}

/// Solves (17) for the sums and counts of the samples in each cell; `None` if the solver does not converge.
pub fn solve(workers: usize, sums: &[f64], counts: &[f64]) -> Option<Vec<f64>> {
    let cells = workers * workers;
    // ½ xᵀPx + qᵀx is half of (17)'s objective, less a constant.
    let diagonal: Vec<usize> = (0..cells).collect();
    let quadratic = CscMatrix::new_from_triplets(cells, cells, diagonal.clone(), diagonal, counts.to_vec());
    let linear: Vec<f64> = sums.iter().map(|sum| -sum).collect();
    let pairs = constraints(workers);
    let (mut rows, mut columns, mut entries) = (Vec::new(), Vec::new(), Vec::new());
    for (row, &(smaller, larger)) in pairs.iter().enumerate() {
        rows.extend([row, row]);
        columns.extend([smaller, larger]);
        entries.extend([1.0, -1.0]);
    }
    let bounds = CscMatrix::new_from_triplets(pairs.len(), cells, rows, columns, entries);
    let settings = DefaultSettings { verbose: false, ..Default::default() };
    let mut solver = DefaultSolver::new(
        &quadratic,
        &linear,
        &bounds,
        &vec![0.0; pairs.len()],
        &[NonnegativeConeT(pairs.len())],
        settings,
    )
    .expect("the problem's dimensions agree");
    solver.solve();
    (solver.solution.status == SolverStatus::Solved).then(|| solver.solution.x.clone())
}
