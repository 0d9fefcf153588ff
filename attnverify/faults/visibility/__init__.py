"""Faults in masks, causality, tiles and special sizes."""
