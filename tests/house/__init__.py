"""What the house promises about itself: arrows, purity, exports, documents."""
