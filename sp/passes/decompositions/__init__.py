"""How single ops that look along the sequence are written with slices, sums, maxima and moves."""
