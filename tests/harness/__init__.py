"""What tests share: a loop with simulated time, and the like."""
