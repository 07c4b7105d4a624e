"""Kills: real processes, a real store, and a receiver that never forgives a second arrival."""
